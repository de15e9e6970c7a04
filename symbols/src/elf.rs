//! The containers of an ELF file: headers, segments, sections, notes, and bounded reads of their bytes.
//! Sources: System V ABI chapters 4 and 5, the x86-64 psABI, `elf(5)`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::CompressedData;
use object::{LittleEndian as LE, pod};

use crate::addr::{AddrRange, BuildId, FileAddr};
use crate::dynamic;
use crate::error::{Error, Unsupported};
use crate::image::Segment;
use crate::notes;
use crate::ranges::Ranges;

/// No single part of a file larger than this is read or decompressed.
const MAX_PART: u64 = 1 << 30;
/// Sections beyond this number are not looked at; linkers produce some dozens.
const MAX_SECTIONS: u64 = 1 << 16;
/// Notes are small; a larger note segment is not looked at.
const MAX_NOTES: u64 = 1 << 20;
/// A compressed section may claim at most this many times its own size (deflate reaches 1032).
const MAX_INFLATION: u64 = 1100;

/// Where the bytes of a file come from.
enum Source {
    File(File, u64),
    Bytes(Vec<u8>),
}

/// One section header, with its name resolved.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: elf::SectionType,
    pub(crate) flags: elf::SectionFlags,
    pub(crate) addr: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
}

impl Section {
    pub(crate) fn is_executable(&self) -> bool {
        self.flags.0 & elf::SHF_EXECINSTR.0 != 0
    }

    pub(crate) fn contains(&self, addr: u64) -> bool {
        addr >= self.addr && addr - self.addr < self.size
    }
}

/// A program header that is no `PT_LOAD`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: elf::ProgramType,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// The parsed headers of one file, and access to its bytes.
pub(crate) struct Elf {
    path: PathBuf,
    source: Source,
    pub(crate) file_type: elf::FileType,
    pub(crate) entry: u64,
    pub(crate) segments: Vec<Segment>,
    pub(crate) headers: Vec<Header>,
    pub(crate) sections: Vec<Section>,
    /// Executable.
    code_segments: Ranges,
    /// Executable.
    code_sections: Ranges,
    /// Of PLT stubs.
    plt_sections: Ranges,
}

impl Elf {
    /// Reads the headers of an open file. `path` is for messages.
    pub(crate) fn open(file: File, path: &Path) -> Result<Elf, Error> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile {
                path: path.to_owned(),
            });
        }
        Elf::parse(Source::File(file, metadata.len()), path)
    }

    /// The same for bytes that are in memory already.
    pub(crate) fn from_bytes(bytes: Vec<u8>, path: &Path) -> Result<Elf, Error> {
        Elf::parse(Source::Bytes(bytes), path)
    }

    fn parse(source: Source, path: &Path) -> Result<Elf, Error> {
        let mut this = Elf {
            path: path.to_owned(),
            source,
            file_type: elf::ET_NONE,
            entry: 0,
            segments: Vec::new(),
            headers: Vec::new(),
            sections: Vec::new(),
            code_segments: Ranges::default(),
            code_sections: Ranges::default(),
            plt_sections: Ranges::default(),
        };
        let ident = this.read(0, this.size().min(20))?;
        this.check_identity(&ident)?;
        let bytes = this.read(0, size_of::<elf::FileHeader64<LE>>() as u64)?;
        let header: elf::FileHeader64<LE> = *this
            .table(&bytes, "file header")?
            .first()
            .ok_or_else(|| this.damaged("file header"))?;
        this.entry = header.e_entry.get(LE);
        this.read_sections(&header)?;
        this.read_segments(&header)?;
        if this.sections.is_empty() {
            this.sections = dynamic::sections(&this);
        }
        let segments = this.segments.iter().filter(|segment| segment.executable);
        this.code_segments = Ranges::new(segments.map(|s| AddrRange::sized(s.addr, s.mem_size)));
        let sections = this
            .sections
            .iter()
            .filter(|section| section.is_executable());
        this.code_sections =
            Ranges::new(sections.map(|s| AddrRange::sized(FileAddr(s.addr), s.size)));
        let plt = this
            .sections
            .iter()
            .filter(|section| section.name.starts_with(".plt"));
        this.plt_sections = Ranges::new(plt.map(|s| AddrRange::sized(FileAddr(s.addr), s.size)));
        Ok(this)
    }

    fn check_identity(&mut self, ident: &[u8]) -> Result<(), Error> {
        if ident.get(..4) != Some(b"\x7fELF") {
            let found = match ident {
                [] => "it is empty",
                [b'#', b'!', ..] => "it is a script; measure its interpreter",
                _ => "no ELF header",
            };
            return Err(Error::NotElf {
                path: self.path.clone(),
                found,
            });
        }
        let &[
            _,
            _,
            _,
            _,
            class,
            data,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            type0,
            type1,
            machine0,
            machine1,
        ] = ident
        else {
            return Err(self.damaged("file header"));
        };
        let unsupported = |kind| {
            Err(Error::Unsupported {
                path: self.path.clone(),
                kind,
            })
        };
        if data == elf::ELFDATA2MSB.0 {
            return unsupported(Unsupported::BigEndian);
        }
        let machine = elf::Machine(u16::from_le_bytes([machine0, machine1]));
        match (machine, elf::FileClass(class)) {
            (elf::EM_X86_64, elf::ELFCLASS64) => {}
            (elf::EM_X86_64, elf::ELFCLASS32) => return unsupported(Unsupported::X32),
            (elf::EM_X86_64, _) => return Err(self.damaged("file class")),
            (elf::EM_386, _) => return unsupported(Unsupported::X86),
            (elf::EM_AARCH64, _) => return unsupported(Unsupported::Aarch64),
            (other, _) => return unsupported(Unsupported::Machine(other.0)),
        }
        self.file_type = elf::FileType(u16::from_le_bytes([type0, type1]));
        match self.file_type {
            elf::ET_EXEC | elf::ET_DYN => Ok(()),
            elf::ET_REL => unsupported(Unsupported::ObjectFile),
            elf::ET_CORE => unsupported(Unsupported::Core),
            other => unsupported(Unsupported::Type(other.0)),
        }
    }

    fn read_segments(&mut self, header: &elf::FileHeader64<LE>) -> Result<(), Error> {
        let count = match header.e_phnum.get(LE) {
            // PN_XNUM: the real number is in the first section header, which `readelf` reads as well; programs
            // with that many segments do not exist outside of core dumps.
            0xffff => return Err(self.damaged("too many program headers")),
            count => u64::from(count),
        };
        if count == 0 {
            return Ok(());
        }
        let size = size_of::<elf::ProgramHeader64<LE>>() as u64;
        if u64::from(header.e_phentsize.get(LE)) != size {
            return Err(self.damaged("program header size"));
        }
        let bytes = self.read(header.e_phoff.get(LE), count * size)?;
        for program in self.table::<elf::ProgramHeader64<LE>>(&bytes, "program headers")? {
            let kind = program.p_type.get(LE);
            let (offset, addr) = (program.p_offset.get(LE), program.p_vaddr.get(LE));
            let file_size = program.p_filesz.get(LE);
            if kind == elf::PT_LOAD {
                self.segments.push(Segment {
                    file_offset: offset,
                    file_size,
                    addr: FileAddr(addr),
                    mem_size: program.p_memsz.get(LE),
                    executable: program.p_flags.get(LE).0 & elf::PF_X.0 != 0,
                });
            } else {
                self.headers.push(Header {
                    kind,
                    offset,
                    size: file_size,
                });
            }
        }
        self.segments.sort_by_key(|segment| segment.addr);
        Ok(())
    }

    /// Section headers are not needed to run a program: damaged ones are no reason to refuse the file.
    fn read_sections(&mut self, header: &elf::FileHeader64<LE>) -> Result<(), Error> {
        let start = header.e_shoff.get(LE);
        let size = size_of::<elf::SectionHeader64<LE>>() as u64;
        if start == 0
            || u64::from(header.e_shentsize.get(LE)) != size
            || self.check(start, size).is_none()
        {
            return Ok(());
        }
        let first = self.read(start, size)?;
        let first: elf::SectionHeader64<LE> = self.table(&first, "section headers")?[0];
        // Numbers that do not fit are in the first, otherwise unused header.
        let count = match header.e_shnum.get(LE) {
            0 => first.sh_size.get(LE),
            count => u64::from(count),
        };
        let names = match header.e_shstrndx.get(LE).0 {
            0xffff => first.sh_link.get(LE),
            index => u32::from(index),
        };
        let count = count.min(MAX_SECTIONS).min((self.size() - start) / size);
        let bytes = self.read(start, count * size)?;
        let headers = self.table::<elf::SectionHeader64<LE>>(&bytes, "section headers")?;
        let names = headers
            .get(names as usize)
            .map(|names| (names.sh_offset.get(LE), names.sh_size.get(LE)));
        let names =
            names.and_then(|(offset, size)| self.read(offset, size.min(MAX_SECTIONS * 64)).ok());
        let names = names.unwrap_or_default();
        let sections = headers.iter().map(|section| Section {
            name: name_at(&names, section.sh_name.get(LE)),
            kind: section.sh_type.get(LE),
            flags: section.sh_flags.get(LE),
            addr: section.sh_addr.get(LE),
            offset: section.sh_offset.get(LE),
            size: section.sh_size.get(LE),
            link: section.sh_link.get(LE),
        });
        self.sections = sections.collect();
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes, when it was opened.
    pub(crate) fn size(&self) -> u64 {
        match &self.source {
            Source::File(_, size) => *size,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    fn check(&self, offset: u64, len: u64) -> Option<usize> {
        let end = offset.checked_add(len)?;
        (end <= self.size() && len <= MAX_PART).then_some(usize::try_from(len).ok()?)
    }

    /// `len` bytes at a file offset.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let Some(len) = self.check(offset, len) else {
            return Err(self.damaged(&format!(
                "{len} bytes at offset {offset:#x} are out of bounds"
            )));
        };
        match &self.source {
            Source::Bytes(bytes) => {
                // In bounds of memory that exists, so the offset fits.
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(bytes
                    .get(start..)
                    .and_then(|rest| rest.get(..len))
                    .unwrap_or_default()
                    .to_vec())
            }
            Source::File(file, _) => {
                let mut bytes = vec![0; len];
                let read = file.read_exact_at(&mut bytes, offset);
                read.map_err(|source| Error::Io {
                    path: self.path.clone(),
                    source,
                })?;
                Ok(bytes)
            }
        }
    }

    /// Up to `len` bytes at an address of a loaded segment, as they are in the file.
    pub(crate) fn read_at(&self, addr: u64, len: u64) -> Option<Vec<u8>> {
        let segment = self
            .segments
            .iter()
            .find(|s| addr >= s.addr.0 && addr - s.addr.0 < s.file_size)?;
        let skip = addr - segment.addr.0;
        self.read(
            segment.file_offset.checked_add(skip)?,
            len.min(segment.file_size - skip),
        )
        .ok()
    }

    /// Whether an address lies in an executable segment.
    pub(crate) fn is_code(&self, addr: FileAddr) -> bool {
        self.code_segments.around(addr).is_some()
    }

    /// Whether an address lies in an executable section.
    pub(crate) fn in_code_section(&self, addr: FileAddr) -> bool {
        self.code_sections.around(addr).is_some()
    }

    /// How many bytes of executable sections there are.
    pub(crate) fn code_bytes(&self) -> u64 {
        self.code_sections.bytes()
    }

    /// Whether an address lies among PLT stubs.
    pub(crate) fn in_plt(&self, addr: FileAddr) -> bool {
        self.plt_sections.around(addr).is_some()
    }

    /// The executable section around an address; the segment, in a file without sections.
    pub(crate) fn code_around(&self, addr: FileAddr) -> Option<AddrRange> {
        self.code_sections
            .around(addr)
            .or_else(|| self.code_segments.around(addr))
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The bytes of a section, decompressed if need be. `None` for sections without bytes in the file.
    pub(crate) fn section_data(&self, section: &Section) -> Result<Option<Vec<u8>>, Error> {
        if section.kind == elf::SHT_NOBITS {
            return Ok(None);
        }
        let bytes = self.read(section.offset, section.size)?;
        if section.flags.0 & elf::SHF_COMPRESSED.0 == 0 {
            return Ok(Some(bytes));
        }
        let header = size_of::<elf::CompressionHeader64<LE>>();
        let damaged = || self.damaged(&format!("compressed section {}", section.name));
        let (head, data) = bytes.split_at_checked(header).ok_or_else(damaged)?;
        let head: elf::CompressionHeader64<LE> = self.table(head, "compression header")?[0];
        let uncompressed_size = head.ch_size.get(LE);
        if uncompressed_size > MAX_PART
            || uncompressed_size > (data.len() as u64).saturating_mul(MAX_INFLATION)
        {
            return Err(damaged());
        }
        let format = match head.ch_type.get(LE) {
            elf::ELFCOMPRESS_ZLIB => object::CompressionFormat::Zlib,
            elf::ELFCOMPRESS_ZSTD => object::CompressionFormat::Zstandard,
            _ => return Err(damaged()),
        };
        let compressed = CompressedData {
            format,
            data,
            uncompressed_size,
        };
        Ok(Some(
            compressed.decompress().map_err(|_| damaged())?.into_owned(),
        ))
    }

    /// As [`Elf::section_data`], by name; `None` also for a section that is not there.
    pub(crate) fn data_of(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.section(name)
            .map_or(Ok(None), |section| self.section_data(section))
    }

    /// Views bytes as a table of records; a partial record at the end is left out.
    pub(crate) fn table<'a, T: pod::Pod>(
        &self,
        bytes: &'a [u8],
        what: &str,
    ) -> Result<&'a [T], Error> {
        let table = pod::slice_from_bytes::<T>(bytes, bytes.len() / size_of::<T>().max(1));
        table
            .map(|(table, _)| table)
            .map_err(|()| self.damaged(what))
    }

    pub(crate) fn header(&self, kind: elf::ProgramType) -> Option<Header> {
        self.headers
            .iter()
            .find(|header| header.kind == kind)
            .copied()
    }

    /// Descriptor of the first note with this owner and type.
    pub(crate) fn note(&self, owner: &[u8], kind: u32) -> Option<Vec<u8>> {
        let from_headers = self
            .headers
            .iter()
            .filter(|h| h.kind == elf::PT_NOTE)
            .map(|h| (h.offset, h.size));
        let from_sections = self
            .sections
            .iter()
            .filter(|s| s.kind == elf::SHT_NOTE)
            .map(|s| (s.offset, s.size));
        from_headers
            .chain(from_sections)
            .find_map(|(offset, size)| {
                let bytes = self.read(offset, size.min(MAX_NOTES)).ok()?;
                notes::find(&bytes, owner, kind).map(<[u8]>::to_vec)
            })
    }

    pub(crate) fn build_id(&self) -> Option<BuildId> {
        BuildId::from_bytes(&self.note(b"GNU", elf::NT_GNU_BUILD_ID.0)?)
    }

    /// The entries of the dynamic section up to `DT_NULL`, as (tag, value).
    pub(crate) fn dynamic(&self) -> Vec<(i64, u64)> {
        let Some(header) = self.header(elf::PT_DYNAMIC) else {
            return Vec::new();
        };
        let Ok(bytes) = self.read(header.offset, header.size.min(MAX_NOTES)) else {
            return Vec::new();
        };
        let words = bytes
            .chunks_exact(16)
            .map(|entry| (word(entry, 0), word(entry, 8)));
        words
            .map(|(tag, value)| (tag.cast_signed(), value))
            .take_while(|(tag, _)| *tag != 0)
            .collect()
    }

    pub(crate) fn damaged(&self, what: &str) -> Error {
        Error::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|word| word.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn name_at(names: &[u8], offset: u32) -> String {
    let rest = names.get(offset as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(256)];
    let end = rest
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}
