//! The resolver's configuration (`resolv.conf`), as the reference reads it.

use std::{
    io::{self, Read as _},
    path::Path,
};

use podplane_cni::types::Dns;
use podplane_host::fs;

use super::path_error::go_path_error;

/// The longest line that Go's scanner accepts.
const MAX_LINE: usize = 64 * 1024;

pub(super) fn read(path: &Path) -> io::Result<Dns> {
    let mut file = fs::open(path).map_err(|error| go_path_error("open", path, error))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)
        .map_err(|error| go_path_error("read", path, error))?;
    parse(&String::from_utf8_lossy(&text))
}

fn parse(text: &str) -> io::Result<Dns> {
    let mut dns = Dns::default();
    for line in text.lines() {
        if line.len() >= MAX_LINE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "bufio.Scanner: token too long",
            ));
        }
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut fields = line.split_whitespace().map(str::to_owned);
        let (Some(keyword), Some(value)) = (fields.next(), fields.next()) else {
            continue;
        };
        match keyword.as_str() {
            "nameserver" => dns.nameservers.push(value),
            "domain" => dns.domain = value,
            "search" => dns.search.extend([value].into_iter().chain(fields)),
            "options" => dns.options.extend([value].into_iter().chain(fields)),
            _ => {}
        }
    }
    Ok(dns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulates_nameservers_searches_and_options() {
        let text = "# c\nnameserver 1.1.1.1 x\n nameserver\t8.8.8.8\ndomain a\ndomain b\nsearch c d\nsearch e\noptions ndots:5\nNameserver 9.9.9.9\nsearch\n";
        let dns = parse(text).unwrap();
        assert_eq!(dns.nameservers, ["1.1.1.1", "8.8.8.8"]);
        assert_eq!(dns.domain, "b");
        assert_eq!(dns.search, ["c", "d", "e"]);
        assert_eq!(dns.options, ["ndots:5"]);
        assert!(parse(&"x".repeat(MAX_LINE)).is_err());
    }
}
