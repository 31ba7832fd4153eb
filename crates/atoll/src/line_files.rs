//! Lines in the files of a directory: `NNNNNNNNNNNNNNNN.jsonl`, by rising numbers. The oldest go.
//!
//! Invariants: at most so many files of at most so many bytes; of a file that is written, every
//! line but the last is whole.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// The files, and the newest one, which is written.
#[derive(Debug)]
pub struct LineFiles {
    directory: PathBuf,
    files_max: u64,
    file_bytes: usize,
    /// Of the newest file; 0: there is none.
    number: u64,
    /// The newest one, and its bytes; none: another is begun.
    file: Option<(File, usize)>,
    /// The newest one may have more than its bytes: they are cut off before anything is appended.
    is_longer: bool,
}

impl LineFiles {
    /// At most `files_max` files of at most `file_bytes`. Nothing is read or written yet.
    pub fn new(directory: PathBuf, files_max: u64, file_bytes: usize) -> Self {
        Self { directory, files_max, file_bytes, number: 0, file: None, is_longer: false }
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of that number.
    pub fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016}.jsonl"))
    }

    /// Of the files that are there, rising; none: there is no directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        let listing = match std::fs::read_dir(&self.directory) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let mut numbers = Vec::new();
        for entry in listing {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
            let digits = digits.filter(|d| d.len() == 16 && d.bytes().all(|b| b.is_ascii_digit()));
            numbers.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// What a file holds, as far as one may.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(number))?.take(self.file_bytes as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// What is appended next goes into that file, behind its first `good` bytes: what is behind
    /// them is cut off. Into another one, if that is not possible.
    pub fn go_on(&mut self, number: u64, good: usize) {
        let cut = OpenOptions::new().append(true).open(self.path(number)).and_then(|file| {
            file.set_len(good as u64)?;
            Ok((file, good))
        });
        (self.number, self.file) = (number, cut.ok());
    }

    /// What is appended next begins a file behind that one.
    pub fn begin_behind(&mut self, number: u64) {
        (self.number, self.file) = (number, None);
    }

    /// Whether a file is written: the next lines go into it, if it has room.
    pub fn is_begun(&self) -> bool {
        self.file.is_some()
    }

    /// Appends whole lines, in one piece.
    ///
    /// # Errors
    /// The file system does not take them; none of them is there then.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        assert!(lines.len() <= self.file_bytes, "they fit into a file");
        self.cut()?;
        let fits = self.file.as_ref().is_some_and(|(_, len)| len + lines.len() <= self.file_bytes);
        if !fits {
            self.begin_file()?;
        }
        let (file, len) = self.file.as_mut().expect("begun above");
        if let Err(e) = file.write_all(lines) {
            self.is_longer = true;
            let _ = self.cut();
            return Err(e);
        }
        *len += lines.len();
        Ok(())
    }

    /// Appends whole lines, and makes them durable.
    ///
    /// # Errors
    /// They are not; none of them is there then, as far as the file system lets.
    pub fn append_durably(&mut self, lines: &[u8]) -> io::Result<()> {
        self.append(lines)?;
        let (file, len) = self.file.as_mut().expect("it was appended to");
        let Err(e) = file.sync_data() else { return Ok(()) };
        *len -= lines.len();
        self.is_longer = true;
        let _ = self.cut();
        Err(e)
    }

    /// Cuts off what could not be appended. What stands behind half a line would not be believed,
    /// and another file would push out an old one each time: nothing is appended until this works.
    fn cut(&mut self) -> io::Result<()> {
        if let Some((file, len)) = self.file.as_ref().filter(|_| self.is_longer) {
            file.set_len(*len as u64)?;
        }
        self.is_longer = false;
        Ok(())
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// Some of it may not be there after a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |(file, _)| file.sync_data())
    }

    /// Goes on in another file; the oldest goes first, and makes room.
    fn begin_file(&mut self) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        if let Some((file, _)) = self.file.take() {
            file.sync_data()?;
        }
        let numbers = self.numbers()?;
        // Others may be there that could not be read before.
        let number = numbers.last().copied().unwrap_or(0).max(self.number) + 1;
        for old in numbers {
            if old + self.files_max <= number {
                std::fs::remove_file(self.path(old))?;
            }
        }
        let file = OpenOptions::new().append(true).create_new(true).open(self.path(number))?;
        self.number = number;
        self.file = Some((file, 0));
        File::open(&self.directory)?.sync_all()
    }
}
