//! Disks on real files, with both backends: what is written is read, what cannot be is refused by
//! name, and memory outlives the futures that wait for it.

use atoll_real::{Backend, OpenError, OpenOptions, RealDisk, now, run, sleep_until};
use atoll_world::{Buf, BufMut, Disk, Durability, Nanos};
use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use std::cell::Cell;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const DURABLE: Durability = Durability::Durable;

/// A directory on a file system with direct I/O, beside the build output.
fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file(dir: &TempDir, blocks: usize) -> PathBuf {
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len((blocks * BLOCK) as u64).unwrap();
    path
}

fn open(path: &Path, backend: Backend) -> Result<RealDisk, OpenError> {
    RealDisk::open(path, OpenOptions { backend, read_only: false })
}

/// Runs a test once for each backend, on a fresh disk of that many blocks.
fn both<F: Future<Output = ()>>(blocks: usize, test: impl Fn(RealDisk, PathBuf) -> F) {
    for (backend, name) in [(Backend::Uring, "uring"), (Backend::Threads, "threads")] {
        let dir = dir();
        let path = file(&dir, blocks);
        run(async {
            let disk = open(&path, backend).unwrap();
            assert_eq!(disk.backend(), name);
            test(disk, path.clone()).await;
        })
        .unwrap();
    }
}

/// Bytes that tell their place.
fn content(block: u64, len: usize) -> Buf {
    let mut buf = BufMut::zeroed(len);
    for (n, chunk) in buf.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(block * 1_000_003 + n as u64).to_le_bytes());
    }
    buf.freeze()
}

#[test]
fn what_was_written_is_read_back_and_is_in_the_file() {
    both(512, async |disk, path| {
        assert_eq!(disk.len_bytes(), 512 * 4096);
        disk.write(0, vec![content(1, BLOCK)], DURABLE).await.unwrap();
        // Several pieces, one of them unaligned in memory, are one write.
        let whole = content(2, 5 * BLOCK);
        let unaligned = Buf::copy_from(&[&[0; 100], &whole[BLOCK..3 * BLOCK]].concat());
        let pieces = vec![
            whole.slice(..BLOCK),
            unaligned.slice(100..),
            Buf::zeros(0),
            whole.slice(3 * BLOCK..),
        ];
        disk.write(8 * 4096, pieces, DURABLE).await.unwrap();
        // More pieces than a device write takes, in odd lengths.
        let long = content(3, 128 * BLOCK);
        let pieces = (0..2048).map(|n| long.slice(n * 256..(n + 1) * 256)).collect();
        disk.write(64 * 4096, pieces, Durability::Volatile).await.unwrap();
        disk.flush().await.unwrap();
        assert_eq!(disk.read(0, 4096).await.unwrap(), content(1, BLOCK));
        assert_eq!(disk.read(8 * 4096, 5 * 4096).await.unwrap(), whole);
        assert!(disk.read(64 * 4096, 4096).await.unwrap().is_aligned());
        assert_eq!(disk.read(4096, 4096).await.unwrap(), Buf::zeros(BLOCK));
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes[64 * BLOCK..192 * BLOCK], long[..]);
        assert_eq!(bytes[8 * BLOCK..13 * BLOCK], whole[..]);
    });
}

#[test]
fn a_range_outside_or_not_in_whole_blocks_is_refused_before_the_device_sees_it() {
    both(4, async |disk, path| {
        let kind = |result: io::Result<Buf>| result.map(|_| ()).map_err(|e| e.kind());
        let refused = Err(ErrorKind::InvalidInput);
        for (at, len) in [(4 * 4096, 4096), (3 * 4096, 8192), (u64::MAX - 4095, 4096), (1, 4096)] {
            assert_eq!(kind(disk.read(at, len).await), refused, "{at}+{len}");
            let data = vec![Buf::zeros(len as usize)];
            let written = disk.write(at, data, DURABLE).await;
            assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidInput);
            let discarded = disk.discard(at, u64::from(len)).await;
            assert_eq!(discarded.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(kind(disk.read(0, 512).await), refused);
        let error = disk.read(4 * 4096, 4096).await.unwrap_err().to_string();
        assert!(error.contains("16384 bytes") && error.contains("disk"), "{error}");
        // A disk that grew is seen to have grown.
        File::options().write(true).open(path).unwrap().set_len(5 * 4096).unwrap();
        disk.write(4 * 4096, vec![content(4, BLOCK)], DURABLE).await.unwrap();
        assert_eq!(disk.len_bytes(), 5 * 4096);
        assert_eq!(disk.read(0, 0).await.unwrap().len(), 0);
        disk.write(0, vec![], DURABLE).await.unwrap();
        disk.discard(0, 0).await.unwrap();
    });
}

#[test]
fn a_disk_that_shrinks_while_in_use_is_an_error_not_a_short_read() {
    both(8, async |disk, path| {
        File::options().write(true).open(path).unwrap().set_len(2 * 4096).unwrap();
        let error = disk.read(0, 8 * 4096).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(disk.len_bytes(), 2 * 4096);
        assert_eq!(disk.read(4096, 4096).await.unwrap(), Buf::zeros(BLOCK));
    });
}

#[test]
fn a_write_does_not_make_a_file_that_was_cut_off_whole_again() {
    both(8, async |disk, path| {
        File::options().write(true).open(&path).unwrap().set_len(2 * 4096).unwrap();
        let error = disk.write(6 * 4096, vec![content(6, BLOCK)], DURABLE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(std::fs::metadata(path).unwrap().len(), 2 * 4096);
    });
}

#[test]
fn a_discard_frees_space_and_leaves_its_neighbours() {
    use std::os::unix::fs::MetadataExt;
    both(256, async |disk, path| {
        for block in 0..256 {
            let data = vec![content(block, BLOCK)];
            disk.write(block * 4096, data, Durability::Volatile).await.unwrap();
        }
        disk.flush().await.unwrap();
        let before = std::fs::metadata(&path).unwrap().blocks();
        disk.discard(16 * 4096, 128 * 4096).await.unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() <= before - 128 * 8);
        assert_eq!(disk.read(15 * 4096, 4096).await.unwrap(), content(15, BLOCK));
        assert_eq!(disk.read(144 * 4096, 4096).await.unwrap(), content(144, BLOCK));
        assert_eq!(disk.len_bytes(), 256 * 4096);
    });
}

#[test]
fn a_thousand_operations_at_once_all_end_and_none_takes_another_ones_bytes() {
    both(2048, async |disk, _| {
        let writes = (0..1000u64).map(|n| {
            let durability = if n % 50 == 0 { DURABLE } else { Durability::Volatile };
            disk.write(n * 2 * 4096, vec![content(n, BLOCK); 2], durability)
        });
        join_all(writes).await.into_iter().for_each(|r| r.unwrap());
        let reads = (0..2000u64).rev().map(|n| disk.read(n * 4096, 4096));
        for (n, read) in (0..2000u64).rev().zip(join_all(reads).await) {
            assert_eq!(read.unwrap(), content(n / 2, BLOCK), "block {n}");
        }
    });
}

/// Those who were answered first need not wait until all others are.
#[test]
fn many_answers_that_are_there_at_once_come_in_pieces() {
    let dir = dir();
    let path = file(&dir, 64);
    run(async {
        let disk = open(&path, Backend::Uring).unwrap();
        let answered = Rc::new(Cell::new(0));
        for block in 0..32 {
            let (disk, answered) = (disk.clone(), answered.clone());
            tokio::task::spawn_local(async move {
                disk.read(block * 4096, 4096).await.unwrap();
                answered.set(answered.get() + 1);
            });
        }
        let seen = tokio::task::spawn_local(async move {
            let (mut first, mut seen) = (true, vec![0]);
            poll_fn(|cx| {
                if std::mem::take(&mut first) {
                    // They have begun, and end while nobody looks.
                    let (_never, blocked) = std::sync::mpsc::channel::<()>();
                    blocked.recv_timeout(Duration::from_millis(200)).unwrap_err();
                }
                seen.push(answered.get());
                if answered.get() == 32 {
                    return Poll::Ready(());
                }
                // In its turn, behind those that are ready.
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            seen
        });
        let seen = seen.await.unwrap();
        assert!(seen.windows(2).all(|pair| pair[1] - pair[0] <= 8), "{seen:?}");
    })
    .unwrap();
}

/// While those that are done wait to be answered, the disk shall have work.
#[test]
fn reads_are_held_back_from_a_disk_that_ends_them_all_at_once() {
    let dir = dir();
    let path = file(&dir, 32);
    let other = File::options().write(true).open(&path).unwrap();
    let fill = |with| other.write_all_at(&[with; 32 * BLOCK], 0).unwrap();
    run(async {
        let disk = open(&path, Backend::Uring).unwrap();
        for round in 1..=50 {
            let (before, after) = (round, round + 100);
            fill(before);
            let reads = join_all((0..32).map(|block| disk.read(block * 4096, 4096)));
            let meanwhile = async {
                // They go to the kernel behind everything that is ready.
                tokio::task::yield_now().await;
                // Those end while nobody looks; whatever is read later finds something else.
                let (_never, blocked) = std::sync::mpsc::channel::<()>();
                blocked.recv_timeout(Duration::from_millis(50)).unwrap_err();
                fill(after);
            };
            let (blocks, ()) = join(reads, meanwhile).await;
            let mut later = 0;
            for block in blocks {
                let block = block.unwrap();
                assert!(block[..] == [before; BLOCK] || block[..] == [after; BLOCK]);
                later += usize::from(block[0] == after);
            }
            // All were given to it at first; after they were seen to end together 20, and more only
            // if a fast one had ended some of them before nobody looked.
            if round > 1 && (1..=12).contains(&later) {
                return;
            }
        }
        panic!("in 50 rounds the disk was always given all of 32 reads");
    })
    .unwrap();
}

#[test]
fn dropped_futures_lose_no_memory_to_the_device_and_writes_stay_whole() {
    both(1024, async |disk, _| {
        disk.write(0, vec![content(9, 1 << 20)], Durability::Volatile).await.unwrap();
        for round in 0..200u64 {
            // Begun, then dropped: the device may still be at it while the memory is asked for
            // again below.
            assert!(disk.read(0, 1 << 20).now_or_never().is_none());
            let at = (256 + round % 64) * 4096;
            let write = disk.write(at, vec![content(round % 64, BLOCK)], Durability::Volatile);
            assert!(write.now_or_never().is_none());
            let mut others: Vec<_> = (0..4).map(|_| BufMut::for_overwrite(1 << 20)).collect();
            others.iter_mut().for_each(|b| b.fill(0xee));
            if round % 3 == 0 {
                tokio::task::yield_now().await;
            }
            assert!(others.iter().all(|b| b.iter().all(|&x| x == 0xee)), "round {round}");
        }
        // The dropped writes went in order before this one and were carried out whole.
        disk.flush().await.unwrap();
        let reads = (0..64).map(|n| disk.read((256 + n) * 4096, 4096));
        for (n, read) in (0u64..).zip(join_all(reads).await) {
            let read = read.unwrap();
            assert!(read == content(n, BLOCK) || read == Buf::zeros(BLOCK), "block {n} is torn");
        }
    });
}

#[test]
fn a_shard_may_end_in_the_middle_of_its_io() {
    for backend in [Backend::Uring, Backend::Threads] {
        let dir = dir();
        let path = file(&dir, 4096);
        // Bytes that have to come from the device.
        std::fs::write(&path, vec![5; 4096 * BLOCK]).unwrap();
        for _ in 0..20 {
            run(async {
                let disk = open(&path, backend).unwrap();
                let ops: Vec<_> = (0..16).map(|n| Box::pin(disk.read(n << 20, 1 << 20))).collect();
                for op in ops {
                    assert!(op.now_or_never().is_none());
                }
                tokio::task::yield_now().await;
            })
            .unwrap();
            // The lock is given back as soon as the last operation is done.
            let again = (0..500).any(|_| {
                run(async {
                    sleep_until(now() + Nanos::from_ms(10)).await;
                    open(&path, backend).is_ok()
                })
                .unwrap()
            });
            assert!(again, "{backend:?}");
        }
    }
}

#[test]
fn a_disk_belongs_to_one_and_what_is_no_disk_is_refused_by_name() {
    let dir = dir();
    let path = file(&dir, 4);
    run(async {
        let disk = open(&path, Backend::Auto).unwrap();
        for backend in [Backend::Uring, Backend::Threads] {
            assert!(matches!(open(&path, backend), Err(OpenError::InUse { .. })));
        }
        // And by another process.
        let lock = std::process::Command::new("flock")
            .args(["--nonblock", path.to_str().unwrap(), "true"])
            .status();
        assert!(!lock.unwrap().success(), "another process can lock it too");
        let clone = disk.clone();
        drop(disk);
        assert!(matches!(open(&path, Backend::Auto), Err(OpenError::InUse { .. })));
        drop(clone);
        assert!(open(&path, Backend::Auto).is_ok());
        let error = open(dir.path(), Backend::Auto).err().unwrap();
        assert!(matches!(error, OpenError::NotADisk { .. }), "{error}");
        assert!(matches!(
            open(Path::new("/dev/null"), Backend::Auto),
            Err(OpenError::NotADisk { .. })
        ));
        let missing = dir.path().join("missing");
        let error = open(&missing, Backend::Auto).err().unwrap();
        assert!(
            matches!(&error, OpenError::Open { error, .. } if error.kind() == ErrorKind::NotFound)
        );
        assert!(error.to_string().contains("missing"), "{error}");
    })
    .unwrap();
}

#[test]
fn a_disk_opened_read_only_takes_no_writes() {
    for backend in [Backend::Uring, Backend::Threads] {
        let dir = dir();
        let path = file(&dir, 4);
        std::fs::write(&path, vec![7; 4 * BLOCK]).unwrap();
        run(async {
            let disk = RealDisk::open(&path, OpenOptions { backend, read_only: true }).unwrap();
            let written = disk.write(0, vec![Buf::zeros(BLOCK)], DURABLE).await;
            assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
            let discarded = disk.discard(0, 4096).await;
            assert_eq!(discarded.unwrap_err().kind(), ErrorKind::PermissionDenied);
            disk.flush().await.unwrap();
            assert_eq!(disk.read(0, 4096).await.unwrap()[..], [7; BLOCK]);
        })
        .unwrap();
    }
}

/// A file system of 2 MiB on a tmpfs, or none where that is not allowed.
struct SmallFileSystem(TempDir);

impl SmallFileSystem {
    fn mount() -> Option<Self> {
        let dir = dir();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "none"])
            .arg(dir.path())
            .output()
            .is_ok_and(|o| o.status.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|s| s.success()), "still mounted");
    }
}

#[test]
fn a_file_system_that_is_full_is_an_error_and_reading_goes_on() {
    let Some(full) = SmallFileSystem::mount() else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    for backend in [Backend::Uring, Backend::Threads] {
        let path = file(&full.0, 4096);
        let done = run(async {
            let disk = match open(&path, backend) {
                Ok(disk) => disk,
                // A tmpfs of before Linux 6.6.
                Err(OpenError::NoDirectIo { .. }) => return false,
                Err(e) => panic!("{e}"),
            };
            disk.write(0, vec![content(1, 1 << 20)], DURABLE).await.unwrap();
            let mut last = Ok(());
            for n in 1..4 {
                last = last.and(disk.write(n << 20, vec![content(2, 1 << 20)], DURABLE).await);
            }
            assert_eq!(last.unwrap_err().kind(), ErrorKind::StorageFull);
            assert_eq!(disk.read(0, 1 << 20).await.unwrap(), content(1, 1 << 20));
            disk.discard(0, 1 << 20).await.unwrap();
            disk.write(0, vec![content(3, BLOCK)], DURABLE).await.unwrap();
            true
        });
        if !done.unwrap() {
            eprintln!("skipped: no direct I/O on a tmpfs here");
        }
        std::fs::remove_file(path).unwrap();
    }
}

/// A block device on a file, or none where that is not allowed.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn attach(file: &Path) -> Option<Self> {
        let made = std::process::Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()
            .ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && Path::new(&name).exists()).then(|| Self(name.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|s| s.success()), "still attached");
    }
}

#[test]
fn a_block_device_is_ours_alone_reads_what_was_written_and_takes_discards() {
    let dir = dir();
    let Some(device) = LoopDevice::attach(&file(&dir, 4096)) else {
        eprintln!("skipped: no loop device can be attached here");
        return;
    };
    for backend in [Backend::Uring, Backend::Threads] {
        run(async {
            let disk = open(&device.0, backend).unwrap();
            assert!(disk.is_block_device());
            assert_eq!(disk.len_bytes(), 4096 * 4096);
            assert!(matches!(open(&device.0, Backend::Auto), Err(OpenError::InUse { .. })));
            disk.write(0, vec![content(1, 1 << 20)], DURABLE).await.unwrap();
            disk.flush().await.unwrap();
            assert_eq!(disk.read(0, 1 << 20).await.unwrap(), content(1, 1 << 20));
            disk.discard(4096, 8192).await.unwrap();
            assert_eq!(disk.read(0, 4096).await.unwrap(), content(1, 1 << 20).slice(..BLOCK));
            assert_eq!(
                disk.read(4096 * 4096, 4096).await.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        })
        .unwrap();
    }
}
