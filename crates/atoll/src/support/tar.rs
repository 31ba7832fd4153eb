//! A tar archive (POSIX ustar) of a few small files, in memory.

/// Bytes of a block; everything is whole ones.
const BLOCK: usize = 512;
/// Bytes of a name, and of the path before it.
const NAME_MAX: usize = 100;
const PREFIX_MAX: usize = 155;

/// An archive that grows.
pub struct Archive {
    folder: String,
    unix_s: u64,
    bytes: Vec<u8>,
}

impl Archive {
    /// An empty one; its files lie in `folder` and are of that time, in seconds since 1970.
    pub fn new(folder: &str, unix_s: u64) -> Self {
        Self { folder: folder.to_owned(), unix_s, bytes: Vec::new() }
    }

    /// Adds a file, readable to its owner alone.
    ///
    /// # Panics
    /// `name` has a part of more than 100 bytes, or is of more than 155.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        let path = format!("{}/{name}", self.folder);
        let (prefix, name) = path.rsplit_once('/').expect("it lies in a folder");
        assert!(name.len() <= NAME_MAX && prefix.len() <= PREFIX_MAX, "{path} is too long");
        let mut head = [0; BLOCK];
        let mut put = |at: usize, text: &str| {
            head[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, "0000600\0");
        put(108, "0000000\0"); // of root
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", content.len()));
        put(136, &format!("{:011o}\0", self.unix_s));
        put(148, "        "); // the checksum counts as blanks
        put(156, "0"); // a regular file
        put(257, "ustar\x0000");
        put(345, prefix);
        let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(head);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    /// The whole archive.
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;
    use std::process::Command;

    #[test]
    fn tar_reads_what_was_put_in() {
        let mut archive = Archive::new("bundle-of-a-host", 1_795_176_000);
        let name = format!("api/placement-{}.json", "v".repeat(64));
        archive.add("manifest.json", b"{}\n");
        archive.add(&name, &[b'x'; 1_000]);
        archive.add("empty", b"");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.tar");
        std::fs::write(&file, archive.end()).unwrap();
        let tar = |words: &[&str]| {
            let mut run = Command::new("tar");
            run.args(words).arg("-f").arg(&file).arg("-C").arg(dir.path());
            let done = run.env("TZ", "UTC").output().unwrap();
            assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        let listed = tar(&["-tv", "--numeric-owner"]);
        let first = listed.lines().next().unwrap();
        assert!(first.starts_with("-rw------- 0/0 "), "{listed}");
        assert!(first.ends_with(" 3 2026-11-20 12:00 bundle-of-a-host/manifest.json"), "{listed}");
        tar(&["-x"]);
        let read =
            |name: &str| std::fs::read(dir.path().join("bundle-of-a-host").join(name)).unwrap();
        assert_eq!((read("manifest.json"), read("empty")), (b"{}\n".to_vec(), Vec::new()));
        assert_eq!(read(&name), [b'x'; 1_000]);
    }
}
