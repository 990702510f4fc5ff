//! Tests of hostile bodies, in the way of `hostile_tests.rs`.

use super::Refusal;
use super::transcript::{chunked, get, refused, taken};
use crate::limits;

#[test]
fn lengths() {
    let both = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
    refused(get(both), Refusal::TwoLengths);
    refused(get("Transfer-Encoding: x\r\nContent-Length: 0\r\n"), Refusal::TwoLengths);
    refused(get("content-length: 3\r\nCONTENT-LENGTH: 3\r\n"), Refusal::RepeatedLength);
    refused(get("Content-Length: 3\r\nContent-Length: 4\r\n"), Refusal::RepeatedLength);
    for length in [
        "",
        "+3",
        "-3",
        "-0",
        "3 3",
        "3,3",
        "3, 4",
        "0x3",
        "3_0",
        "3.0",
        "3e0",
        "03",
        "00",
        "a",
        "3;",
        "\"3\"",
        "\u{663}",
        "18446744073709551616",
        "99999999999999999999999999",
        "3\t3",
        "0003",
        "-18446744073709551613",
        "3\u{a0}",
    ] {
        refused(get(&format!("Content-Length: {length}\r\n")), Refusal::BadLength);
    }
    for coding in [
        "",
        "identity",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "chunked;q=1",
        "\"chunked\"",
        "gzip",
        "chunked, gzip",
        "chunkedx",
        "xchunked",
        "chunked chunked",
        "chun ked",
        "cow",
        "gzip;x, chunked",
        "\u{a0}chunked",
    ] {
        let head = get(&format!("Transfer-Encoding: {coding}\r\n"));
        refused(head, Refusal::BadTransferEncoding);
    }
    for coding in ["gzip, chunked", "deflate,\tCHUNKED", "identity, chunked"] {
        let head = get(&format!("Transfer-Encoding: {coding}\r\n"));
        refused(head, Refusal::UnknownTransferCoding);
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    refused(get(twice), Refusal::BadTransferEncoding);
    let hidden = "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n";
    refused(get(hidden), Refusal::BadTransferEncoding);
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(old, Refusal::TransferEncodingInOldVersion);
    refused(get("Content-Length: 1048577\r\n"), Refusal::BodyTooLong);
    refused(get("Content-Length: 18446744073709551615\r\n"), Refusal::BodyTooLong);

    taken(get("Content-Length: 0\r\n"));
    taken(get("Content-Length:\t3 \r\n") + "abc");
    taken(get("Transfer-Encoding: ChunKed\r\n") + "3\r\nabc\r\n0\r\n\r\n");
    // The content of a body is not examined.
    taken(get("Content-Length: 20\r\n") + "GET /x HTTP/1.1\r\n\r\n\r");
}

#[test]
fn chunks() {
    for size in [
        "",
        " 3",
        "3 ",
        "+3",
        "-3",
        "0x3",
        "g",
        "3g",
        "3,",
        "\t3",
        "3\t",
        "\"3\"",
        "3_0",
        "\u{663}",
        "00000000000000003",
        "FFFFFFFFFFFFFFFFF",
        "10000000000000003",
    ] {
        refused(chunked(&format!("{size}\r\nabc\r\n0\r\n\r\n")), Refusal::BadChunkSize);
    }
    refused(chunked("3\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\rabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\r\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\r\nabc\r\n\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    for extension in [";", "; a", ";=a", ";;a", ";\ta", ";\"a\""] {
        let body = format!("3{extension}\r\nabc\r\n0\r\n\r\n");
        refused(chunked(&body), Refusal::BadChunkExtension);
    }
    refused(chunked("3;a\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension); // CVE-2025-55315.
    refused(chunked("3;a=\"\n\"\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension);
    refused(chunked("3;a\0\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension);
    refused(chunked("3;a\rb\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    for end in ["", "\n", "\r", "d\r\n", "\n\r\n", "\r\r\n", "XX", "\r ", "0\r\n"] {
        let body = format!("3\r\nabc{end}0\r\n\r\n");
        refused(chunked(&body), Refusal::BadChunkEnd); // CVE-2025-43859 and others.
    }
    refused(chunked("100001\r\n"), Refusal::BodyTooLong);
    refused(chunked("FFFFFFFFFFFFFFFF\r\n"), Refusal::BodyTooLong);
    refused(chunked("3\r\nabc\r\nFFFFFFFFFFFFFFFE\r\n"), Refusal::BodyTooLong);
    for trailer in [
        "A\r\n",
        ": b\r\n",
        "A b: c\r\n",
        " A: b\r\n",
        "A : b\r\n",
        "A: b\n",
        "A: b\rc\r\n",
        "A: \0\r\n",
        "A: b\r\n c\r\n",
        "\n",
        "A: b\r\n\n",
        "GET /x HTTP/1.1\r\n",
    ] {
        refused(chunked(&format!("0\r\n{trailer}\r\n")), Refusal::BadTrailer);
    }
    refused(chunked("0\r\n\r"), Refusal::BadTrailer);
    refused(chunked("0\r\n"), Refusal::BadTrailer); // The next request is not a trailer.

    taken(chunked("0\r\n\r\n"));
    taken(chunked("000\r\n\r\n"));
    taken(chunked("3\r\nabc\r\n1;a\r\nd\r\n0000000a;b=\"c;d\" ; e\r\n0123456789\r\n0\r\n\r\n"));
    taken(chunked("1\r\n\r\r\n1\r\n\n\r\n0;x\r\nA: b\r\nContent-Length: 7\r\n\r\n"));
    taken(chunked("A\r\n0\r\n\r\nGET /\r\n0\r\n\r\n"));
}

#[test]
fn limits_of_bodies_are_exact() {
    let extension =
        |bytes: u32| chunked(&format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(bytes as usize)));
    taken(extension(limits::HTTP_EXTENSION_BYTES_MAX));
    refused(extension(limits::HTTP_EXTENSION_BYTES_MAX + 1), Refusal::ExtensionsTooLong);
    let extensions = |count: u32| {
        let chunk = format!("1;{}\r\na\r\n", "e".repeat(128));
        chunked(&(chunk.repeat(count as usize) + "0\r\n\r\n"))
    };
    let count = limits::HTTP_EXTENSIONS_BYTES_MAX / 128;
    taken(extensions(count));
    refused(extensions(count + 1), Refusal::ExtensionsTooLong);
    // The count includes names, colons and values.
    let trailers =
        |bytes: u32| chunked(&format!("0\r\nA:{}\r\n\r\n", "t".repeat(bytes as usize - 2)));
    taken(trailers(limits::HTTP_TRAILERS_BYTES_MAX));
    refused(trailers(limits::HTTP_TRAILERS_BYTES_MAX + 1), Refusal::TrailersTooLong);
}
