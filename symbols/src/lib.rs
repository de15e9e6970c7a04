//! Names, files and lines of code addresses.
