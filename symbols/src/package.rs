//! Which package brings the symbols of a stripped file, as the package manager's own files say. Nothing is run.

use std::io::Read;
use std::path::Path;

use crate::addr::BuildId;
use crate::debugfile::DebugSearch;
use crate::root::Root;

/// A longer list of a package's files is not read, in bytes.
const MAX_LIST: u64 = 16 << 20;
/// More lists are not read.
const MAX_LISTS: usize = 20_000;
/// All lists together, in bytes.
const MAX_TOTAL: u64 = 256 << 20;

/// The command that installs the symbols of the file at `path`, under the root of `search`; `None` when no package manager
/// is known there, or it does not know the file.
pub(crate) fn install_symbols(
    search: &DebugSearch,
    path: &Path,
    build_id: Option<&BuildId>,
) -> Option<String> {
    if search.directories.is_empty() {
        return None;
    }
    let path = path.to_str()?;
    if let Some(package) = debian(search, path) {
        return Some(match package.as_str() {
            "libc6" => "apt install libc6-dbg".to_owned(),
            _ => format!("apt install {package}-dbgsym"),
        });
    }
    if let Some(package) = alpine(search, path) {
        return Some(format!("apk add {package}-dbg"));
    }
    let rpm = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];
    if !rpm
        .iter()
        .any(|path| search.root.folder(Path::new(path)).is_somewhere())
    {
        return None;
    }
    let build_id = build_id?.to_string();
    let (head, tail) = build_id.split_at_checked(2)?;
    Some(format!(
        "dnf --enablerepo='*debug*' install /usr/lib/debug/.build-id/{head}/{tail}.debug"
    ))
}

/// By dpkg's lists of files: `/var/lib/dpkg/info/NAME.list` or `NAME:ARCHITECTURE.list`, a path a line.
fn debian(search: &DebugSearch, path: &str) -> Option<String> {
    let folder = search.root.folder(Path::new("/var/lib/dpkg/info"));
    let mut total = 0;
    for name in folder.names().take(MAX_LISTS) {
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else {
            continue;
        };
        let Some(list) = text(&folder, Path::new(&name)) else {
            continue;
        };
        total += list.len() as u64;
        if list.lines().any(|line| is_same(line, path)) {
            let package = package.split(':').next().unwrap_or(package);
            return is_plain(package).then(|| package.to_owned());
        }
        if total > MAX_TOTAL {
            return None;
        }
    }
    None
}

/// By apk's database: stanzas with `P:` package, `F:` folder and `R:` file in it.
fn alpine(search: &DebugSearch, path: &str) -> Option<String> {
    let database = text(&search.root, Path::new("/lib/apk/db/installed"))?;
    let (mut package, mut folder) = ("", "");
    for line in database.lines() {
        match line.split_once(':') {
            Some(("P", name)) => package = name,
            Some(("F", name)) => folder = name,
            Some(("R", name)) if is_same(&format!("/{folder}/{name}"), path) => {
                return is_plain(package).then(|| package.to_owned());
            }
            _ => {}
        }
    }
    None
}

/// Where `/lib` is a link to `/usr/lib`, packages and processes may name different ones.
fn is_same(listed: &str, path: &str) -> bool {
    let bare = |path: &str| match path.starts_with("/usr/") {
        true => 4,
        false => 0,
    };
    listed[bare(listed)..] == path[bare(path)..]
}

/// What a package may be called: it becomes a part of a command that a person copies.
fn is_plain(package: &str) -> bool {
    !package.is_empty()
        && package
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
}

fn text(root: &Root, path: &Path) -> Option<String> {
    let mut text = Vec::new();
    let file = root.open(path).ok()?;
    file.take(MAX_LIST).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn hint(files: &[(&str, &str)], path: &str) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let build_id = "abcdef01".parse().ok();
        let search = DebugSearch::below(Root::at(root.path()));
        install_symbols(&search, Path::new(path), build_id.as_ref())
    }

    #[test]
    fn each_package_manager_knows_its_files() {
        let dpkg = [
            ("var/lib/dpkg/info/other.list", "/.\n/usr/bin/storefront\n"),
            ("var/lib/dpkg/info/store-1.2.list", "/.\n/usr/bin/store\n"),
            ("var/lib/dpkg/info/libc6:amd64.list", "/lib/x/libc.so.6\n"),
            ("var/lib/dpkg/info/a;reboot.list", "/usr/bin/evil\n"),
        ];
        let found = hint(&dpkg, "/usr/bin/store");
        assert_eq!(found.as_deref(), Some("apt install store-1.2-dbgsym"));
        let found = hint(&dpkg, "/usr/lib/x/libc.so.6");
        assert_eq!(found.as_deref(), Some("apt install libc6-dbg"));
        assert_eq!(hint(&dpkg, "/usr/bin/evil"), None);
        assert_eq!(hint(&dpkg, "/usr/bin/absent"), None);
        let apk = [(
            "lib/apk/db/installed",
            "P:musl\nF:lib\nR:ld-musl-x86_64.so.1\n\nP:store\nF:usr/bin\nR:store\n",
        )];
        let found = hint(&apk, "/usr/bin/store");
        assert_eq!(found.as_deref(), Some("apk add store-dbg"));
        let found = hint(&[("var/lib/rpm/rpmdb.sqlite", "")], "/usr/bin/store");
        assert_eq!(
            found.as_deref(),
            Some("dnf --enablerepo='*debug*' install /usr/lib/debug/.build-id/ab/cdef01.debug")
        );
        assert_eq!(hint(&[], "/usr/bin/store"), None);
    }
}
