//! How much memory a process may still use before its control group is full, where the kernel kills one of the group; and how
//! often the group was held back as it had used up its CPU time.
//!
//! Source: the kernel's admin-guide/cgroup-v2.rst (`memory.max`, `memory.current`, `memory.stat`, `cpu.stat`),
//! admin-guide/cgroup-v1/memory.rst (`memory.limit_in_bytes`, `memory.usage_in_bytes`) and scheduler/sched-bwc.rst.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use procfs::process::{MountInfo, Process};

/// The files of one version of the interface.
struct Files {
    file_system: &'static str,
    limit: &'static str,
    used: &'static str,
    /// What the kernel gives up by itself before it kills, in `memory.stat`: the cache of files, however hot, and what of its own
    /// it can free.
    reclaimable: &'static [&'static str],
}

const VERSIONS: [Files; 2] = [
    Files {
        file_system: "cgroup2",
        limit: "memory.max",
        used: "memory.current",
        reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
    },
    Files {
        file_system: "cgroup",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        reclaimable: &["total_inactive_file", "total_active_file"],
    },
];

impl Files {
    /// Whether a group with these controllers is of this version.
    fn is_in(&self, controllers: &[String], controller: &str) -> bool {
        match self.file_system {
            "cgroup2" => controllers.is_empty(),
            _ => controllers.iter().any(|name| name == controller),
        }
    }

    /// Whether groups of this version with a controller are shown there.
    fn is_at(&self, mount: &MountInfo, controller: &str) -> bool {
        let has_it = self.file_system == "cgroup2" || mount.super_options.contains_key(controller);
        mount.fs_type == self.file_system && has_it
    }
}

/// The bytes that are left in the group of the process, and in those around it; nothing where no limit is known.
pub(crate) fn memory_left(pid: i32) -> Option<u64> {
    let folders = folders(pid, "memory")?.into_iter();
    folders
        .filter_map(|(folder, files)| left_in(&folder, files))
        .min()
}

/// How processes of some control groups were kept from running by limits of CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldBack {
    /// How often a group had used up the time of a period.
    pub times: u64,
    /// For how long, on all CPUs together.
    pub time: Duration,
}

/// The control groups whose limits of CPU time a process is under.
#[derive(Debug, Default)]
pub struct CpuLimits(Vec<(PathBuf, HeldBack)>);

impl CpuLimits {
    /// Those that it is under now; none where nothing is known.
    #[must_use]
    pub fn of(pid: i32) -> CpuLimits {
        let folders = folders(pid, "cpu").unwrap_or_default().into_iter();
        // One group may be shown in several places.
        let mut seen = HashSet::new();
        let then = folders.filter_map(|(folder, _)| {
            let (at, file) = (fs::metadata(&folder).ok()?, folder.join("cpu.stat"));
            let text = fs::read_to_string(&file).ok()?;
            let is_new = seen.insert((at.dev(), at.ino()));
            is_new.then(|| (file, HeldBack::read(&text)))
        });
        CpuLimits(then.collect())
    }

    /// How they have held their processes back since then.
    #[must_use]
    pub fn held_back(&self) -> HeldBack {
        let mut sum = HeldBack::default();
        for (file, then) in &self.0 {
            let now = fs::read_to_string(file).map_or(*then, |text| HeldBack::read(&text));
            sum.times += now.times.saturating_sub(then.times);
            sum.time += now.time.saturating_sub(then.time);
        }
        sum
    }
}

impl HeldBack {
    fn read(text: &str) -> HeldBack {
        let mut found = HeldBack::default();
        for (name, number) in text.lines().filter_map(|line| line.split_once(' ')) {
            let number = number.trim().parse().unwrap_or(0);
            match name {
                "nr_throttled" => found.times = number,
                "throttled_usec" => found.time = Duration::from_micros(number),
                "throttled_time" => found.time = Duration::from_nanos(number),
                _ => {}
            }
        }
        found
    }
}

/// The groups of a process that have a controller, and those around them.
fn folders(pid: i32, controller: &str) -> Option<Vec<(PathBuf, &'static Files)>> {
    let groups = Process::new(pid).ok()?.cgroups().ok()?;
    let mounts = Process::myself().ok()?.mountinfo().ok()?;
    let mut found = Vec::new();
    for files in &VERSIONS {
        let mut groups = groups.0.iter();
        let group = groups.find(|group| files.is_in(&group.controllers, controller));
        let Some(group) = group else { continue };
        // Each mount may show another part of the groups.
        for mount in mounts.iter().filter(|mount| files.is_at(mount, controller)) {
            if let Some(folder) = folder(&group.pathname, mount) {
                let around = around(&folder, &mount.mount_point);
                found.extend(around.map(|folder| (folder.to_owned(), files)));
            }
        }
    }
    Some(found)
}

/// Where a group is, under a mount that may show only a part of all groups. A group outside of that part is not found.
fn folder(group: &str, mount: &MountInfo) -> Option<PathBuf> {
    let below = Path::new(group).strip_prefix(&mount.root).ok()?;
    let is_inside = below
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    is_inside.then(|| mount.mount_point.join(below))
}

/// A group and those around it, up to the mount.
fn around<'a>(group: &'a Path, mount: &'a Path) -> impl Iterator<Item = &'a Path> {
    group
        .ancestors()
        .take_while(move |folder| folder.starts_with(mount))
}

fn left_in(folder: &Path, files: &Files) -> Option<u64> {
    let number = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok()
    };
    // `max`, or in the first version a number that no memory has.
    let limit = number(files.limit).filter(|&limit| limit < 1 << 60)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let fields = stat.lines().filter_map(|line| line.split_once(' '));
    let reclaimable = fields.filter(|(name, _)| files.reclaimable.contains(name));
    let reclaimable = reclaimable.fold(0, |sum: u64, (_, bytes)| {
        sum.saturating_add(bytes.trim().parse().unwrap_or(0))
    });
    let used = number(files.used)?.saturating_sub(reclaimable);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A group below that of this process, with a limit; removed at the end.
    pub(crate) struct Group {
        folder: PathBuf,
        limit: &'static str,
    }

    impl Group {
        /// Nothing where none can be made. `limit` in bytes.
        pub(crate) fn new(limit: u64) -> Option<Group> {
            let groups = Process::myself().ok()?.cgroups().ok()?;
            let mounts = Process::myself().ok()?.mountinfo().ok()?;
            VERSIONS.iter().find_map(|files| {
                let group = groups
                    .0
                    .iter()
                    .find(|group| files.is_in(&group.controllers, "memory"))?;
                let mount = mounts.iter().find(|mount| files.is_at(mount, "memory"))?;
                let folder = folder(&group.pathname, mount)?;
                let folder = folder.join(format!("darc-test-{}", std::process::id()));
                fs::create_dir(&folder).ok()?;
                let found = Group {
                    folder,
                    limit: files.limit,
                };
                let is_limited = fs::write(found.folder.join(found.limit), limit.to_string());
                is_limited.is_ok().then_some(found)
            })
        }

        /// Changes the limit to so many bytes.
        pub(crate) fn limit(&self, bytes: u64) {
            fs::write(self.folder.join(self.limit), bytes.to_string()).unwrap();
        }

        /// Has the process be in it.
        pub(crate) fn take(&self, pid: i32) {
            fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.folder);
        }
    }

    /// The fullest of the groups around a process counts, and what can be given up is not used.
    #[test]
    fn the_fullest_group_counts() {
        let mount = std::env::temp_dir().join(format!("darc-groups-{}", std::process::id()));
        let group = mount.join("shop/server");
        fs::create_dir_all(&group).unwrap();
        let write = |folder: &Path, limit: &str, used: &str, inactive: &str| {
            fs::write(folder.join("memory.max"), limit).unwrap();
            fs::write(folder.join("memory.current"), used).unwrap();
            let stat = format!("anon 1\ninactive_file {inactive}\nactive_file 0\nfile 2\n");
            fs::write(folder.join("memory.stat"), stat).unwrap();
        };
        let [two, one] = &VERSIONS;
        let left = |group: &Path, mount: &Path, files| {
            let around = around(group, mount);
            around.filter_map(|folder| left_in(folder, files)).min()
        };
        write(&group, "max\n", "5\n", "0");
        assert_eq!(left(&group, &mount, two), None);
        write(&mount.join("shop"), "1000\n", "900\n", "300");
        assert_eq!(left(&group, &mount, two), Some(400));
        write(&group, "100\n", "90\n", "0");
        assert_eq!(left(&group, &mount, two), Some(10));
        write(&group, "100\n", "200\n", "0");
        assert_eq!(left(&group, &mount, two), Some(0));
        assert_eq!(left(&group, &mount, one), None);
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn what_held_a_group_back_is_read_in_both_versions() {
        let two = "usage_usec 7\nnr_periods 9\nnr_throttled 3\nthrottled_usec 1500\n";
        let one = "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000\n";
        let expected = HeldBack {
            times: 3,
            time: Duration::from_micros(1500),
        };
        assert_eq!(HeldBack::read(two), expected);
        assert_eq!(HeldBack::read(one), expected);
        assert_eq!(HeldBack::read("usage_usec 7\nbad\n"), HeldBack::default());
    }

    /// Also when the process has ended. Of a group that is gone nothing is known.
    #[test]
    fn what_came_since_is_told_of_the_same_groups() {
        let folder = std::env::temp_dir().join(format!("darc-cpu-limits-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("cpu.stat");
        let then = HeldBack::read("nr_throttled 3\nthrottled_usec 1500\n");
        fs::write(&file, "nr_throttled 5\nthrottled_usec 2500\n").unwrap();
        let limits = CpuLimits(vec![(file, then), (folder.join("gone"), then)]);
        let expected = HeldBack {
            times: 2,
            time: Duration::from_millis(1),
        };
        assert_eq!(limits.held_back(), expected);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(limits.held_back(), HeldBack::default());
    }
}
