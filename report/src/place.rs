//! A place in a module's code: the same in every run, wherever the module was loaded.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An address in a module, written `module+0x1f`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Place {
    /// The module's path, as it stands among the report's modules.
    pub module: String,
    /// The offset from the module's link-time base, in bytes.
    pub offset: u64,
}

/// A text that is no place.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
#[error("'{}' is no place in a module (module+0xOFFSET)", super::escape::control(.0))]
pub struct NotAPlace(String);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.module, self.offset)
    }
}

impl FromStr for Place {
    type Err = NotAPlace;

    /// The offset follows the last `+0x`, as a module's name may hold one too.
    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        let refused = || NotAPlace(text.to_owned());
        let (module, digits) = text.rsplit_once("+0x").ok_or_else(refused)?;
        let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        if module.is_empty() || digits.is_empty() || !digits.bytes().all(is_hex) {
            return Err(refused());
        }
        let offset = u64::from_str_radix(digits, 16).map_err(|_| refused())?;
        let place = Place {
            module: module.to_owned(),
            offset,
        };
        // One way to write a place: no leading zeros.
        (place.to_string() == text)
            .then_some(place)
            .ok_or_else(refused)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in ["/usr/lib/libc.so.6+0x1f", "a+0x0", "odd+0x1+0x2"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "libc",
            "libc+0x",
            "+0x1",
            "libc+0xg",
            "libc+0X1",
            "libc+0x01",
            "a+0x10000000000000000",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
