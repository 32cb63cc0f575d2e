//! Files that are read as a whole: the configuration, secrets, certificates, schemas.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::units::size_text;

/// Maximum size of a configuration file, a secret or a certificate, in bytes.
const MOST: u64 = 1 << 20;

/// The content of a regular file of at most 1 MiB.
pub fn read_small_file(path: &Path) -> io::Result<Vec<u8>> {
    read_file_of(path, MOST)
}

/// The same as text.
pub fn read_small_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_small_file(path)?).map_err(|_| invalid("it is not UTF-8 text".to_owned()))
}

/// The content of a regular file of at most this many bytes. Other files are not opened: a device may never end, and a
/// pipe waits for its writer.
pub fn read_file_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("it is not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(invalid(format!("it is larger than {}", size_text(most))));
    }
    Ok(bytes)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_small_text(&link).unwrap(), "text", "Kubernetes mounts secrets as symbolic links");
        fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(read_small_file(&file).unwrap().len(), 1 << 20);
        let why = |path: &Path| read_small_text(path).unwrap_err().to_string();
        fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert_eq!(why(&file), "it is larger than 1MiB");
        fs::write(&file, [0xff]).unwrap();
        assert_eq!(why(&file), "it is not UTF-8 text");
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [Path::new("/dev/zero"), &pipe, dir.path()] {
            assert_eq!(why(path), "it is not a regular file");
        }
    }
}
