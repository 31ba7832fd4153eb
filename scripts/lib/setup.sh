# Shared by the scripts: what a fresh Debian 12 machine with Rust may lack, and the one build.
# Sourced, never run. Installs Debian packages only where one is missing and says which.

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$1" >&2; [ $# -lt 2 ] || printf 'hint: %s\n' "$2" >&2; exit 1; }

# need_packages PACKAGE...: installs what is missing. Root, or sudo where we are not root.
need_packages() {
    command -v dpkg-query >/dev/null || {
        say "This is not Debian: taking it that these are installed under other names: $*"
        return 0
    }
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local as=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "packages are missing: ${missing[*]}" "as root: apt-get install --no-install-recommends ${missing[*]}"
        as=(sudo)
    fi
    say "Installing from Debian: ${missing[*]}"
    local log
    log=$(mktemp)
    {
        "${as[@]}" apt-get -q update &&
            "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
                --no-install-recommends "${missing[@]}"
    } >"$log" 2>&1 || { tail -n 20 "$log" >&2; rm -f "$log"; die "apt-get could not install ${missing[*]}"; }
    rm -f "$log"
}

# need_rust: a cargo that is new enough (Cargo.toml says which), and the compiler of etcd's messages.
need_rust() {
    need_packages libprotobuf-dev protobuf-compiler
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH=$HOME/.cargo/bin:$PATH
    fi
    command -v cargo >/dev/null || die "cargo is not installed" "see https://rustup.rs"
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml" | head -n 1)
    have=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
        die "Rust $want or newer is needed, this is $have" "rustup update stable"
}

# target_dir: where cargo puts what it builds, with the user's own setting respected.
target_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$repository/target}"; }

# build_release: the binary, once; prints its path on the last line to the variable ATOLL_BIN.
build_release() {
    (cd "$repository" && cargo build --release --locked -p atoll) ||
        die "the build failed" "the compiler's message is above"
    ATOLL_BIN=$(target_dir)/release/atoll
    export ATOLL_BIN
}
