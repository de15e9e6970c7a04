//! Damaged and malicious files: no panic, bounded time and memory.
