//! What to do about each kind of event: one table.

/// Kinds after which somebody should do something, and what.
const NEXT_STEPS: &[(&str, &str)] = &[
    (
        "api-refused",
        "atoll token list; give who asks a good token, or find out who it is (docs/security.md)",
    ),
    (
        "audit-damaged",
        "atoll audit verify, on the host, names the lines; find out who has changed them",
    ),
    ("audit-not-kept", "make room on the file system of host.data_dir, or make it writable"),
    ("bad-block", "atoll disk list; a disk with more and more of them is to be replaced"),
    ("block-lost", "restore the volume from a backup; atoll volume show VOLUME"),
    ("block-repaired", "atoll disk list; a disk with more and more of them is to be replaced"),
    (
        "certificate-expired",
        "atoll cluster certificate makes a new one; the host uses it by itself (docs/security.md)",
    ),
    ("certificate-unusable", "atoll cluster certificate makes a new one (docs/security.md)"),
    (
        "copy-refused",
        "stop the copy of this host for good (docs/operations.md, 'Copies of a host')",
    ),
    ("disk-empty", "atoll group create, or give the host the disk that it had"),
    ("disk-unusable", "atoll disk list; make the disk usable, then restart the host"),
    ("events-not-kept", "make room on the file system of host.data_dir, or make it writable"),
    ("group-failed", "atoll group list; its remedy says whether to replace the disk"),
    ("host-moved", "atoll host list; look whether a copy of the host runs"),
    (
        "host-removal-taken-back",
        "start the host, so that these volumes get another copy; then try again",
    ),
    ("host-twice", "stop one of the two for good (docs/operations.md, 'Copies of a host')"),
    (
        "host-was-removed",
        "to use the machine again, join it as a new host (docs/operations.md, 'A host that goes \
         for good')",
    ),
    (
        "level-unknown",
        "install the release of the cluster on the host; atoll cluster upgrade, on another one",
    ),
    ("log-damage", "atoll disk list; replace the disk if it happens again"),
    ("log-full", "look for slow-device; fewer writes, or faster disks"),
    ("member-dropped", "atoll host list; it comes back by itself with its host"),
    ("no-place", "bring the host back, or add a host or disks; it is then rebuilt by itself"),
    ("no-space", "free some, or add disks or hosts; atoll group list"),
    ("object-without-a-name", "nothing to do unless its volume is missed: then see host logs"),
    ("page-rewritten", "atoll disk list; a disk with more and more of them is to be replaced"),
    (
        "peer-refused",
        "both ends must use TLS, with certificates of one authority, or neither (docs/security.md)",
    ),
    ("slow-device", "atoll disk list; look at the disk, replace it if it stays slow"),
    ("state-full", "make room on the file system of host.data_dir"),
    ("state-unknown", "look at the file system of host.data_dir"),
    ("writes-lost", "check what the volume's user needs; restore from a backup if it is old"),
];

/// What to do after an event of that kind; empty: nothing.
pub(crate) fn next_step(kind: &str) -> &'static str {
    NEXT_STEPS.iter().find(|(of, _)| *of == kind).map_or("", |(_, step)| step)
}

#[cfg(test)]
mod tests {
    use super::{NEXT_STEPS, next_step};

    #[test]
    fn kinds_are_in_order_and_have_a_step() {
        assert!(NEXT_STEPS.is_sorted_by(|(a, _), (b, _)| a < b));
        assert!(NEXT_STEPS.iter().all(|(_, step)| !step.is_empty() && !step.ends_with('.')));
        assert_eq!(next_step("state-full"), "make room on the file system of host.data_dir");
        assert_eq!(next_step("took-over"), "");
    }
}
