//! sqlite: the text of all rows, as it lies in the pages of a database.
//!
//! Every page that holds cells is read, whichever table or index it belongs to, and so are pages that were given up and not written over:
//! deleted rows are often still there. A long value is put together from its overflow pages. Numbers and blobs are left out. Nothing
//! follows the tree, so a damaged one hides nothing. Not here: what only a write-ahead log beside the file has.

use std::io::{self, Read, SeekFrom};

use super::{ReadSeek, Stop, Walk, inside};

/// How a database begins.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
/// Longest row that is put together.
const ROW_BYTES_MAX: u64 = 16 << 20;

pub(super) fn walk(file: &mut dyn ReadSeek, path: &[u8], depth: u32, walk: &mut Walk<'_>) -> Result<(), Stop> {
    let mut rows = Rows::open(file)?;
    walk.member(&inside(path, b"rows"), &mut rows, depth + 1)
}

/// The rows of a database as text, one a line, values apart by tabs.
struct Rows<'f> {
    file: &'f mut dyn ReadSeek,
    page_bytes: usize,
    /// Bytes of a page that hold content.
    usable: usize,
    pages: u32,
    next_page: u32,
    encoding: Encoding,
    text: Vec<u8>,
    given: usize,
}

#[derive(Clone, Copy)]
enum Encoding {
    Utf8,
    Utf16(fn([u8; 2]) -> u16),
}

impl<'f> Rows<'f> {
    fn open(file: &'f mut dyn ReadSeek) -> Result<Self, Stop> {
        let len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            bytes if bytes.is_power_of_two() && bytes >= 512 => usize::from(bytes),
            _ => return Err(Stop::Broken),
        };
        let usable = page_bytes - usize::from(header[20]);
        let encoding = match header[59] {
            2 => Encoding::Utf16(u16::from_le_bytes),
            3 => Encoding::Utf16(u16::from_be_bytes),
            _ => Encoding::Utf8,
        };
        let pages = u32::try_from(len / page_bytes as u64).map_err(|_| Stop::Broken)?;
        if usable < 480 || pages == 0 {
            return Err(Stop::Broken);
        }
        Ok(Self { file, page_bytes, usable, pages, next_page: 1, encoding, text: Vec::new(), given: 0 })
    }

    /// Pages have numbers from 1 on.
    fn page(&mut self, number: u32) -> io::Result<Option<Vec<u8>>> {
        if !(1..=self.pages).contains(&number) {
            return Ok(None);
        }
        let mut page = vec![0; self.page_bytes];
        self.file.seek(SeekFrom::Start(u64::from(number - 1) * self.page_bytes as u64))?;
        self.file.read_exact(&mut page)?;
        Ok(Some(page))
    }

    fn add_page(&mut self, number: u32) -> io::Result<()> {
        let Some(page) = self.page(number)? else { return Ok(()) };
        let head = if number == 1 { HEADER_BYTES } else { 0 };
        // Which pages have cells with rows, how long their heads are, what stands before a row, and how much of it may stay in the page.
        let (head_bytes, left_bytes, has_id, is_table) = match page[head] {
            13 => (8, 0, true, true),
            10 => (8, 0, false, false),
            2 => (12, 4, false, false),
            _ => return Ok(()),
        };
        let cells = usize::from(u16::from_be_bytes([page[head + 3], page[head + 4]]));
        let pointers = page[head + head_bytes..].chunks_exact(2).take(cells);
        let offsets: Vec<usize> = pointers.map(|at| usize::from(u16::from_be_bytes([at[0], at[1]]))).collect();
        for offset in offsets {
            let Some(mut cell) = page[..self.usable].get(offset + left_bytes..) else { continue };
            let Some(len) = varint(&mut cell) else { continue };
            if has_id && varint(&mut cell).is_none() || len > ROW_BYTES_MAX {
                continue;
            }
            if let Some(row) = self.row(cell, len as usize, is_table)? {
                self.add_row(&row);
            }
        }
        Ok(())
    }

    /// The whole row that begins in a cell.
    fn row(&mut self, cell: &[u8], len: usize, is_table: bool) -> io::Result<Option<Vec<u8>>> {
        let usable = self.usable;
        let here_max = if is_table { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
        if len <= here_max {
            return Ok(cell.get(..len).map(<[u8]>::to_vec));
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let here = least + (len - least) % (usable - 4);
        let here = if here <= here_max { here } else { least };
        let (Some(first), Some(next)) = (cell.get(..here), cell.get(here..here + 4)) else { return Ok(None) };
        let (mut row, mut next) = (first.to_vec(), u32_at(next));
        // The length ends the chain, be it a ring.
        while row.len() < len {
            let Some(page) = self.page(next)? else { return Ok(None) };
            let more = (usable - 4).min(len - row.len());
            row.extend_from_slice(&page[4..4 + more]);
            next = u32_at(&page);
        }
        Ok(Some(row))
    }

    fn add_row(&mut self, row: &[u8]) {
        let mut rest = row;
        let Some(header) = varint(&mut rest).and_then(|len| row.get(row.len() - rest.len()..len as usize)) else {
            return;
        };
        let (mut types, mut at) = (header, row.len() - rest.len() + header.len());
        let before = self.text.len();
        while let Some(kind) = varint(&mut types) {
            let len = match kind {
                0 | 8 | 9 => 0,
                1..=4 => kind as usize,
                5 => 6,
                6 | 7 => 8,
                10 | 11 => return,
                kind => ((kind - 12) / 2) as usize,
            };
            let Some(value) = at.checked_add(len).and_then(|end| row.get(at..end)) else { break };
            at += len;
            if kind >= 13 && kind % 2 == 1 {
                match self.encoding {
                    Encoding::Utf8 => self.text.extend_from_slice(value),
                    Encoding::Utf16(unit) => {
                        let units = value.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
                        let chars = char::decode_utf16(units).map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER));
                        self.text.extend_from_slice(chars.collect::<String>().as_bytes());
                    }
                }
                self.text.push(b'\t');
            }
        }
        if self.text.len() > before {
            self.text.push(b'\n');
        }
    }
}

fn u32_at(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("a page and a cell have as many"))
}

/// A number of one to nine bytes.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..9 {
        let byte = *rest.get(at)?;
        let is_last = at == 8 || byte < 0x80;
        number = if at == 8 { number << 8 | u64::from(byte) } else { number << 7 | u64::from(byte & 0x7f) };
        if is_last {
            *rest = &rest[at + 1..];
            return Some(number);
        }
    }
    None
}

impl Read for Rows<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() && self.next_page <= self.pages {
            self.text.clear();
            self.given = 0;
            let page = self.next_page;
            self.next_page += 1;
            self.add_page(page)?;
        }
        let len = buffer.len().min(self.text.len() - self.given);
        buffer[..len].copy_from_slice(&self.text[self.given..self.given + len]);
        self.given += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// What sqlite itself wrote, with pages of 512 bytes, packed with gzip: rows on several pages, a value on overflow pages, an index.
    const ROWS: &str = "\
        1f8b0800000000000203edd74d685c5518c6f173269964266d9a36693a4d3f326751d14291dcf7b91f33125a5b8da09442b58ae0c6a8531b4c138953\
        cdc2856b05170a2e842e0497c595d08d08ea5274a7b8b20b71e14210042d88e0fd279d7b5d1ce8ce8dbd90db93cefb34c3f93df74cfad4c5f36bc341\
        b8bcb975757518e41ace7bf77008ce954be7daaebef87efc5fdf7b77f7abe11e7cd14fb3f0ef3bff5979bb77ddedbabf31d19999f167d6365e1a6caf\
        0ddb8f3cb972f6d24a78fcc2a32bcf86b5b0b911860f6cac5e1d9c3ce77706af0d575f581f0c878d3b8397ce9e3bbf7267260c07dbc353e1f5d5f56b\
        a3f54658db28ffb81cb606abeb279b3b367ff0735bfeafddc5bdeb7f704dce96b7099ee7f17e7a7ab99f955f79f955945fbdf2ab7f7a39595ae29670\
        336ee29672cbb8e5dc0a6e3d6e24121209898444422221919048482424121209092361248c8491301246c24818092361244442244442244442244442\
        244442245212298994444a222591924849a424521229898c444622239191c8486424321219898c444622279193c849e424721239899c444e22279193\
        284814240a120589824441a2205190284814247a247a247a247a247a247a247a247a247a247a24fa24fa24fa24fa24e04ef04e4af0d2bf592e48c19e\
        e06eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81b\
        ee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe1\
        6eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16eb81bee86bbe16e3ce886b9f5390a48e12e\
        dc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25d\
        b80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb\
        7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb7017eec25db80b77e12edc85bb78d6559a37a6777ea9bbcff99fddc0ad948bd8b538\
        deec64edd6d6e61b21d98e5c8b63e5ebad9dd79762afbf7bb531317ffda2f3eb9b1b2f2f7324958d2bdfc0e9e5f2ad956fac7c5be59be25387cf113e\
        1938eb39bd398f39613933390539d738a538773849381b78da797e792279c6786a780e68353da579748976e08d2026ec32fbc64e94efa49ca3323486\
        c2d017ea425b280b5da12a3485a2d0136a424b28091da122348482d00fea413b2807dda01a348362d00b6a412b28059da012348242d007ea401b2803\
        5da00a348122d0036a400b28011da002348002e00f7fc937b6e09b9d053ff9da95cdade1571f97bf410e26cfdcdea5c57f9f3be5fc2dffb9bfeedff4\
        cff987fc82bbedbe779fbaf7dcabee42f9e29d2bcc361732bf5b832ce63c130ed413696c625fd85f4f2836311d66ea098b4dec0dfbea89681ff784e9\
        7a22dac8a9eedeb2b2bb13fdd840bbbba71ae8c5065adda96aa0880d4c76dbd5401e1b98e8b6aa81e87636bb93d5407437c7bb13d5407433c7bacd6a\
        20ba978d5dff13ceff58feefec43bfed9ff1a99f75bfb96fdd0df7b6bbe21e732742a876d3a29b753c74eb89e86e1d0b8bf54474bb8e86e3f54474bf\
        8e8463f54474c316c2d17a22ba6387c3917a22ba659db0504f44f7ec50385c4f44fb371f3af544b47f07c3a1baa1d13d9d0bf3f544744f67c3c17a22\
        baa707c25c3d11ddd3fd533cd7ee13e7fff4bffa9ffc0ffe1bffa5bfe96ff88ffc07fe1dff96bfe65ff1cffba7fd13fe4cd98c937ed1cff996fbdbfd\
        ee7e71b7dc77ee6bf785bb59fe03ffc9d51aebb4774eb1f658c7ef3cbb7b47abde9ed1aa981aadf2f66895b546ab7472b4d2c4547932eeb63a54cb5e\
        b75a168bd5323f5e2db363d5323d5a2d75a45ada42b54c0e57cba5cee8e75a73f49749ff50b5eccd57cbe260b5cce7aa65365b2dd303d552fbaba5cd\
        54cb645fb55c9a1efddc647cb45a1a6b8dcdef7c1837fe01125fd0d700120000";
    /// A database in UTF-16.
    const WIDE: &str = "\
        1f8b08000000000002030b0ef4c92c495548cb2fca4d2c51306660626064647050506060003221180618819805898f2c870b3031e82533f28234336e\
        6700a251401de0cec8a62828c85858c290c890c490c390ca5002844cce0c410cae0c8e0c21405201483a323831f880d9250c1a0c7940c5b940a5205e\
        2a430590d46480c4cd0706201a052300f03132a996336432a480d3c113060060bd5a1400040000";

    fn database(hex: &str) -> Vec<u8> {
        let packed: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn text(bytes: &[u8]) -> Option<String> {
        let (mut file, mut text) = (Cursor::new(bytes), Vec::new());
        Rows::open(&mut file).ok()?.read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    #[test]
    fn all_rows_are_text_and_long_values_are_whole() {
        let text = text(&database(ROWS)).unwrap();
        assert!(text.contains("short\t\u{e4} one\t\n"), "{text}");
        let long: String = (0..400).map(|number| format!("<{number}>")).collect();
        assert!(text.contains(&format!("long\t{long}\t\n")));
        assert!((0..30).all(|row| text.contains(&format!("row {row}\txxxxxxxxxxxxxxxxxxxx\t\n"))));
        assert!(text.contains("CREATE TABLE") || text.contains("create table"), "the names of columns");
    }

    #[test]
    fn wide_text_is_read() {
        assert!(text(&database(WIDE)).unwrap().contains("wide \u{e4}\t\n"));
    }

    #[test]
    fn any_damage_ends() {
        let whole = database(ROWS);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = text(&damaged);
        }
        for cut in (0..whole.len()).step_by(97) {
            let _ = text(&whole[..cut]);
        }
    }
}
