//! Ranges of an output that only the disk has (RFC 9110, section 14).

use std::io::{Read, Write};

use serde_json::json;

use crate::world::{Folder, Response, get, kill, run};

#[test]
fn a_range_from_the_disk_is_what_a_file_server_would_send() {
    let folder = Folder::new("ranges");
    let content = folder.write_file("file.txt", (2 << 20) + 321);
    let server = folder.serve(&[]);
    let id = run(&server, "process_file", json!({"file_path": "file.txt"}));
    kill(server);
    let server = folder.serve(&[]);
    let path = format!("/v1/executions/{id}/output");
    let total = content.len();

    let Response { status, head, body } = get(&server, &path, "");
    assert!((status, body.as_slice()) == (200, content.as_slice()));
    assert!(head.contains(&format!("content-length: {total}")), "{head}");
    assert!(head.contains("accept-ranges: bytes"), "{head}");
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();

    let half = total / 2;
    for (range, first, end) in [
        ("0-0".to_owned(), 0, 1),
        ("0-99".to_owned(), 0, 100),
        (format!("{half}-{}", half + 70_000), half, half + 70_001),
        (format!("{}-", total - 5), total - 5, total),
        ("-5".to_owned(), total - 5, total),
        (format!("-{}", total + 9), 0, total),
        (format!("{}-{}", total - 1, total + 999), total - 1, total),
        (format!("65535-{}", 65_536), 65_535, 65_537),
    ] {
        let Response { status, head, body } =
            get(&server, &path, &format!("Range: bytes={range}\r\n"));
        assert_eq!(status, 206, "{range}: {head}");
        let expected = format!("content-range: bytes {first}-{}/{total}", end - 1);
        assert!(head.contains(&expected), "{range}: {head}");
        assert!(head.contains(&format!("content-length: {}", end - first)), "{range}: {head}");
        assert!(body == content[first..end], "{range}");
    }
    // Several ranges and other units are ignored. A range that does not exist is refused.
    for range in ["bytes=0-1,5-6", "lines=1-2", "bytes=9-3", "bytes=x-"] {
        let Response { status, body, .. } = get(&server, &path, &format!("Range: {range}\r\n"));
        assert!((status, body.len()) == (200, total), "{range}: {status}");
    }
    let Response { status, head, .. } = get(&server, &path, &format!("Range: bytes={total}-\r\n"));
    assert_eq!(status, 416);
    assert!(head.contains(&format!("content-range: bytes */{total}")), "{head}");
    // If-Range and If-None-Match.
    let fits = format!("Range: bytes=3-4\r\nIf-Range: {etag}\r\n");
    assert_eq!(get(&server, &path, &fits).status, 206);
    let stale = "Range: bytes=3-4\r\nIf-Range: \"other\"\r\n";
    assert_eq!(get(&server, &path, stale).status, 200);
    let known = format!("If-None-Match: {etag}\r\n");
    assert_eq!(get(&server, &path, &known).status, 304);
}

#[test]
fn a_connection_goes_on_behind_a_range() {
    let folder = Folder::new("behind");
    let content = folder.write_file("file.txt", 700_000);
    let server = folder.serve(&[]);
    let id = run(&server, "process_file", json!({"file_path": "file.txt"}));
    kill(server);
    let server = folder.serve(&[]);
    let mut stream = server.connect();
    for (first, last) in [(0, 9), (300_000, 300_999), (699_990, 699_999), (1, 1)] {
        write!(
            stream,
            "GET /v1/executions/{id}/output HTTP/1.1\r\nHost: localhost\r\n\
             Range: bytes={first}-{last}\r\n\r\n"
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 206"), "{head}");
        let mut body = vec![0; last + 1 - first];
        stream.read_exact(&mut body).unwrap();
        assert!(body == content[first..=last], "{first}");
    }
}
