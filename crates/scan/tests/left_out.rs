//! What a scan leaves out is counted with its reason, and the receipt names the flag that includes it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod packing;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;

use packing::{bzip2, gzip, seven_zip, sqlite, xz, zip, zstd};
use serde_json::Value;
use stage::{git, run, token, write};
use tessera_scan::plan::target::ReadOptions;
use tessera_scan::report::{Format, Written};
use tessera_scan::run::job::Job;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{Keeping, ScanReport};
use tessera_scan::source::item::SkipReason;

fn scanned(root: &Path, change: impl FnOnce(&mut ScanRequest)) -> (ScanReport, Job) {
    let mut request = ScanRequest { workers: 2, ..ScanRequest::of_paths(vec![root.to_path_buf()]) };
    change(&mut request);
    let job = Job {
        rules: vec![tessera_scan::read::rules::Rules::builtin()],
        detect: request.detect.clone(),
        keep_secrets: false,
        id_key: request.id_key,
    };
    (run(&request, &Keeping::Nothing), job)
}

fn archives(root: &Path) -> (ScanReport, Job) {
    scanned(root, |request| request.options = ReadOptions { archives: true, ..ReadOptions::default() })
}

fn history(root: &Path) -> (ScanReport, Job) {
    scanned(root, |request| request.scope = ScanScope::History)
}

fn written((report, job): &(ScanReport, Job), format: Format) -> String {
    let mut out = Vec::new();
    let written = Written { report, job, suppressed: 0, colours: false, redacted_percent: 100 };
    written.write(format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The part of the report in JSON that tells what was left out: counts by reason.
fn skipped(scanned: &(ScanReport, Job)) -> BTreeMap<String, u64> {
    let report: Value = serde_json::from_str(&written(scanned, Format::Json)).unwrap();
    let skipped = report["receipt"]["skipped"].as_object().unwrap();
    skipped.iter().map(|(why, count)| (why.clone(), count.as_u64().unwrap())).collect()
}

fn counts<const N: usize>(expected: [(SkipReason, u64); N]) -> BTreeMap<String, u64> {
    expected.map(|(why, count)| (why.to_string(), count)).into()
}

fn paths((report, _): &(ScanReport, Job)) -> Vec<String> {
    let locations = report.findings.iter().flat_map(|finding| &finding.locations);
    let mut paths: Vec<_> = locations.map(|at| String::from_utf8(at.occurrence.path.clone()).unwrap()).collect();
    paths.sort();
    paths
}

/// A text with the token of this number.
fn text(number: u64) -> Vec<u8> {
    format!("TOKEN={}\n", token(number)).into_bytes()
}

/// Archives and documents with a token in each: name, content, and the path at which the token is found.
fn packed() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let tagged = |tag: &str, number: u64| {
        format!("<?xml version=\"1.0\"?><x:doc><{tag}>TOKEN={}</{tag}></x:doc>", token(number)).into_bytes()
    };
    vec![
        ("a.gz", gzip(&text(1)), "a.gz!a"),
        ("b.bz2", bzip2(&text(2)), "b.bz2!b"),
        ("c.xz", xz(&text(3)), "c.xz!c"),
        ("d.zst", zstd(&text(4)), "d.zst!d"),
        ("e.7z", seven_zip("inside.env", &text(5)), "e.7z!inside.env"),
        ("f.zip", zip(&[("inside.env", &text(6))]), "f.zip!inside.env"),
        ("g.jar", zip(&[("META-INF/MANIFEST.MF", b"A: b\n"), ("app.properties", &text(7))]), "g.jar!app.properties"),
        ("h.docx", zip(&[("word/document.xml", &tagged("w:t", 8))]), "h.docx!word/document.xml"),
        ("i.xlsx", zip(&[("xl/sharedStrings.xml", &tagged("t", 9))]), "i.xlsx!xl/sharedStrings.xml"),
        ("j.pptx", zip(&[("ppt/slides/slide1.xml", &tagged("a:t", 10))]), "j.pptx!ppt/slides/slide1.xml"),
        ("k.sqlite", sqlite(text(11).trim_ascii_end()), "k.sqlite!rows"),
    ]
}

#[test]
fn each_archive_and_document_is_counted_and_read_with_the_flag_that_the_receipt_names() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content, _) in packed() {
        write(dir.path(), name, content);
    }
    write(dir.path(), "plain.env", text(20));
    let without = scanned(dir.path(), |_| {});
    assert_eq!(skipped(&without), counts([(SkipReason::Packed, packed().len() as u64)]));
    assert_eq!(paths(&without), ["plain.env"]);
    let human = written(&without, Format::Human);
    assert!(human.contains("archive or document (--archives reads them)"), "{human}");
    let with = archives(dir.path());
    let expected: Vec<&str> = packed().iter().map(|(_, _, path)| *path).chain(["plain.env"]).collect();
    assert_eq!(paths(&with), expected);
    assert_eq!((skipped(&with), with.0.receipt.is_complete()), (BTreeMap::new(), true));
    // Each by itself, as a target of its own.
    for (name, _, path) in packed() {
        // What is in a compressed file is named after it, and a target has no name.
        let inside =
            path.split_once('!').map(|(_, inside)| if inside.len() == 1 { "content" } else { inside }).unwrap();
        assert_eq!(paths(&archives(&dir.path().join(name))), [format!("!{inside}")], "{name}");
        let alone = scanned(&dir.path().join(name), |_| {});
        assert_eq!(skipped(&alone), counts([(SkipReason::Packed, 1)]), "{name}");
    }
}

#[test]
fn a_damaged_archive_is_read_in_part_at_most_and_the_scan_is_not_complete() {
    for (name, content, _) in packed() {
        let dir = tempfile::tempdir().unwrap();
        // A database is read page by page, so that a cut one lacks its last.
        write(dir.path(), name, &content[..content.len() - content.len() / 3]);
        let (report, _) = archives(dir.path());
        assert!(!report.receipt.is_complete() || name == "k.sqlite", "{name}: {:?}", report.receipt.tally);
    }
}

/// Formats of JSON need no flag.
#[test]
fn notebooks_recordings_and_collections_are_read_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let notebook = serde_json::json!({"nbformat": 4, "cells": [
        {"cell_type": "code", "source": ["import os\n", format!("token = '{}'\n", token(1))], "outputs": []},
    ]});
    let recording = serde_json::json!({"log": {"entries": [{"request": {"headers": [
        {"name": "Authorization", "value": format!("Bearer {}", token(2))},
    ]}}]}});
    let collection = serde_json::json!({"info": {"name": "api"}, "item": [{"request": {"auth": {"type": "bearer", "bearer": [
        {"key": "token", "value": token(3), "type": "string"},
    ]}}}]});
    for (name, value) in [("a.ipynb", notebook), ("b.har", recording), ("c.postman_collection.json", collection)] {
        write(dir.path(), name, serde_json::to_string_pretty(&value).unwrap());
    }
    let scanned = scanned(dir.path(), |_| {});
    assert_eq!(paths(&scanned), ["a.ipynb", "b.har", "c.postman_collection.json"]);
    assert_eq!(skipped(&scanned), BTreeMap::new());
}

#[test]
fn wide_text_and_names_that_are_not_ascii_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("\u{e4}: TOKEN={}\n", token(1));
    let wide = |mark: &[u8], unit: fn(u32) -> [u8; 4]| {
        let units = line.chars().flat_map(|char| unit(u32::from(char)));
        mark.iter().copied().chain(units).collect::<Vec<u8>>()
    };
    write(dir.path(), "le.txt", wide(b"\xff\xfe\0\0", u32::to_le_bytes));
    write(dir.path(), "be.txt", wide(b"\0\0\xfe\xff", u32::to_be_bytes));
    write(dir.path(), "\u{fc}ber/\u{540d}\u{524d}.env", text(2));
    let scanned = scanned(dir.path(), |_| {});
    assert_eq!(paths(&scanned), ["be.txt", "le.txt", "\u{fc}ber/\u{540d}\u{524d}.env"]);
    assert_eq!(skipped(&scanned), BTreeMap::new());
    // The column counts characters, and the mark is none.
    let wide = scanned.0.findings.iter().find(|finding| finding.locations.len() == 2).unwrap();
    let columns: Vec<_> =
        wide.locations.iter().map(|at| (at.occurrence.start.line, at.occurrence.start.column)).collect();
    assert_eq!(columns[0], columns[1]);
    assert_eq!(columns[0].0, 1);
}

/// A repository with a submodule that is checked out, one that is not, and a pointer of Git LFS.
fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    git(root, &["init", "-q", "-b", "main"]);
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n", "a1".repeat(32));
    write(root, "large.bin", pointer);
    write(root, "plain.env", text(1));
    git(root, &["init", "-q", "-b", "main", "here"]);
    write(root, "here/inside.env", text(2));
    git(&root.join("here"), &["add", "-A"]);
    git(&root.join("here"), &["commit", "-q", "-m", "of the submodule"]);
    git(root, &["add", "large.bin", "plain.env", "here"]);
    git(root, &["update-index", "--add", "--cacheinfo", &format!("160000,{},absent", "1".repeat(40))]);
    git(root, &["commit", "-q", "-m", "all"]);
    std::fs::create_dir(root.join("absent")).unwrap();
    dir
}

#[test]
fn a_pointer_and_a_submodule_are_counted_with_what_has_them_read() {
    let dir = repository();
    let files = scanned(dir.path(), |_| {});
    // The submodule that is checked out is read where it lies.
    assert_eq!(paths(&files), ["here/inside.env", "plain.env"]);
    let expected = [(SkipReason::GitInternal, 2), (SkipReason::LfsPointer, 1), (SkipReason::Submodule, 1)];
    assert_eq!(skipped(&files), counts(expected));
    let of_history = history(dir.path());
    assert_eq!(paths(&of_history), ["plain.env"]);
    assert_eq!(skipped(&of_history), counts([(SkipReason::LfsPointer, 1), (SkipReason::Submodule, 2)]));
    for scanned in [&files, &of_history] {
        let human = written(scanned, Format::Human);
        for part in [
            "submodule (each is a target of its own)",
            "Git LFS pointer (`git lfs pull` puts the content into the working tree)",
        ] {
            assert!(human.contains(part), "{human}");
        }
    }
}

#[test]
fn the_receipt_names_what_no_scan_searches() {
    let dir = repository();
    for (scanned, expected) in [
        (scanned(dir.path(), |_| {}), &["names of files"][..]),
        (history(dir.path()), &["names of files", "messages of commits and tags", "objects that no ref leads to"]),
    ] {
        let report: Value = serde_json::from_str(&written(&scanned, Format::Json)).unwrap();
        assert_eq!(report["receipt"]["not_searched"], serde_json::json!(expected));
        let human = written(&scanned, Format::Human);
        assert!(expected.iter().all(|kind| human.contains(kind)), "{human}");
    }
}
