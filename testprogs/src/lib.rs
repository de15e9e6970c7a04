//! Target programs whose behaviour is known.
