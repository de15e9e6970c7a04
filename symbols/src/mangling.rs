//! Recognises plain C++ manglings in linear time. The demangler tries alternatives one after the other, at every level
//! anew, and needs ages for a malformed name of a hundred characters (`nwnwnw…`). So it is given only names that are well
//! formed and have at most a few, simple expressions; these it takes straight. Source: Itanium C++ ABI, section 5.1.

/// Names nest at most this deep.
const MAX_DEPTH: usize = 64;
/// Operators, literals and names in all expressions of one name.
const MAX_EXPRESSIONS: usize = 32;
/// Conversion operators of one name: the demangler tries each in two ways.
const MAX_CONVERSIONS: usize = 4;

/// Whether `raw` is a well-formed mangled C++ name without complicated expressions.
pub(crate) fn is_plain(raw: &str) -> bool {
    let name = raw.strip_prefix("_Z").or_else(|| raw.strip_prefix("__Z"));
    let mut parser = Parser {
        rest: name.unwrap_or_default().as_bytes(),
        depth: 0,
        expressions: 0,
        conversions: 0,
    };
    name.is_some() && parser.encoding().is_some() && matches!(parser.peek(), None | Some(b'.'))
}

/// What is left to read. Every method consumes what it is called after, or gives up for good.
struct Parser<'a> {
    rest: &'a [u8],
    depth: usize,
    expressions: usize,
    conversions: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn peek_second(&self) -> Option<u8> {
        self.rest.get(1).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        let end = self
            .rest
            .iter()
            .position(|&byte| !wanted(byte))
            .unwrap_or(self.rest.len());
        self.rest = &self.rest[end..];
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// A function with its parameters, a variable, or what the compiler makes for a class.
    fn encoding(&mut self) -> Option<()> {
        self.nested(|this| {
            match (this.peek()?, this.peek_second()) {
                (b'T', Some(b'V' | b'T' | b'I' | b'S')) => {
                    this.rest = &this.rest[2..];
                    return this.type_();
                }
                (b'T', Some(b'h' | b'v')) => {
                    this.next();
                    this.call_offset()?;
                    return this.encoding();
                }
                (b'T', Some(b'c')) => {
                    this.rest = &this.rest[2..];
                    this.call_offset()?;
                    this.call_offset()?;
                    return this.encoding();
                }
                (b'T', Some(b'H' | b'W')) | (b'G', Some(b'V')) => {
                    this.rest = &this.rest[2..];
                    return this.name();
                }
                (b'G', Some(b'R')) => {
                    this.rest = &this.rest[2..];
                    this.name()?;
                    this.skip_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
                    return this.expect(b'_');
                }
                _ => this.name()?,
            }
            while !matches!(this.peek(), None | Some(b'E' | b'.')) {
                this.type_()?;
            }
            Some(())
        })
    }

    fn call_offset(&mut self) -> Option<()> {
        let numbers = match self.next()? {
            b'h' => 1,
            b'v' => 2,
            _ => return None,
        };
        for _ in 0..numbers {
            self.eat(b'n');
            self.skip_while(|byte| byte.is_ascii_digit());
            self.expect(b'_')?;
        }
        Some(())
    }

    fn name(&mut self) -> Option<()> {
        self.nested(|this| match this.peek()? {
            b'N' => this.nested_name(),
            b'Z' => this.local_name(),
            b'S' if this.peek_second() != Some(b't') => {
                // The name of a template that was written before.
                this.substitution()?;
                this.template_args()
            }
            _ => {
                if this.rest.starts_with(b"St") {
                    this.rest = &this.rest[2..];
                }
                this.unqualified()?;
                if this.peek() == Some(b'I') {
                    this.template_args()
                } else {
                    Some(())
                }
            }
        })
    }

    fn nested_name(&mut self) -> Option<()> {
        self.expect(b'N')?;
        self.skip_while(|byte| matches!(byte, b'r' | b'V' | b'K'));
        self.skip_while(|byte| matches!(byte, b'R' | b'O'));
        while !self.eat(b'E') {
            match self.peek()? {
                b'S' if self.peek_second() == Some(b't') => self.rest = &self.rest[2..],
                b'S' => self.substitution()?,
                b'T' => self.template_param()?,
                b'I' => self.template_args()?,
                b'M' => self.expect(b'M')?,
                _ => self.unqualified()?,
            }
        }
        Some(())
    }

    fn local_name(&mut self) -> Option<()> {
        self.expect(b'Z')?;
        self.encoding()?;
        self.expect(b'E')?;
        if self.eat(b's') {
            return self.discriminator();
        }
        if self.eat(b'd') {
            self.skip_while(|byte| byte.is_ascii_digit());
            self.expect(b'_')?;
        }
        self.name()?;
        self.discriminator()
    }

    fn discriminator(&mut self) -> Option<()> {
        if !self.eat(b'_') {
            return Some(());
        }
        if self.eat(b'_') {
            self.skip_while(|byte| byte.is_ascii_digit());
            return self.expect(b'_');
        }
        self.next().filter(u8::is_ascii_digit).map(|_| ())
    }

    fn unqualified(&mut self) -> Option<()> {
        match self.peek()? {
            b'0'..=b'9' => self.source_name()?,
            b'L' => {
                self.next();
                self.source_name()?;
            }
            b'C' | b'D' => {
                self.next();
                self.next().filter(u8::is_ascii_digit)?;
            }
            b'U' => self.unnamed()?,
            b'a'..=b'z' => self.operator()?,
            _ => return None,
        }
        while self.eat(b'B') {
            self.source_name()?;
        }
        Some(())
    }

    fn source_name(&mut self) -> Option<()> {
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .take(6)
            .count();
        let len: usize = std::str::from_utf8(&self.rest[..digits])
            .ok()?
            .parse()
            .ok()?;
        self.rest = self.rest[digits..].get(len..).filter(|_| len > 0)?;
        Some(())
    }

    /// `Ut_`, `Ut5_` (unnamed type), `UlvE_` (closure).
    fn unnamed(&mut self) -> Option<()> {
        self.expect(b'U')?;
        match self.next()? {
            b't' => {}
            b'l' => {
                while !self.eat(b'E') {
                    self.type_()?;
                }
            }
            _ => return None,
        }
        self.skip_while(|byte| byte.is_ascii_digit());
        self.expect(b'_')
    }

    fn operator(&mut self) -> Option<()> {
        let (code, rest) = self.rest.split_at_checked(2)?;
        self.rest = rest;
        match code {
            b"cv" => {
                self.conversions += 1;
                if self.conversions > MAX_CONVERSIONS {
                    None
                } else {
                    self.type_()
                }
            }
            b"li" => self.source_name(),
            b"nw" | b"na" | b"dl" | b"da" | b"ps" | b"ng" | b"ad" | b"de" | b"co" | b"pl"
            | b"mi" | b"ml" | b"dv" | b"rm" | b"an" | b"or" | b"eo" | b"aS" | b"pL" | b"mI"
            | b"mL" | b"dV" | b"rM" | b"aN" | b"oR" | b"eO" | b"ls" | b"rs" | b"lS" | b"rS"
            | b"eq" | b"ne" | b"lt" | b"gt" | b"le" | b"ge" | b"ss" | b"nt" | b"aa" | b"oo"
            | b"pp" | b"mm" | b"cm" | b"pm" | b"pt" | b"cl" | b"ix" | b"qu" | b"aw" => Some(()),
            _ => None,
        }
    }

    /// `S_`, `S1A_`, `Sa`; not `St`, which is a namespace.
    fn substitution(&mut self) -> Option<()> {
        self.expect(b'S')?;
        if matches!(self.peek()?, b'a' | b's' | b'b' | b'i' | b'o' | b'd') {
            self.next();
            return Some(());
        }
        self.skip_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        self.expect(b'_')
    }

    fn template_param(&mut self) -> Option<()> {
        self.expect(b'T')?;
        self.skip_while(|byte| byte.is_ascii_digit());
        self.expect(b'_')
    }

    fn template_args(&mut self) -> Option<()> {
        self.nested(|this| {
            if !this.eat(b'I') {
                this.expect(b'J')?;
            }
            while !this.eat(b'E') {
                match this.peek()? {
                    b'L' => this.literal()?,
                    b'X' => {
                        this.next();
                        this.expression()?;
                        this.expect(b'E')?;
                    }
                    b'I' | b'J' => this.template_args()?,
                    _ => this.type_()?,
                }
            }
            Some(())
        })
    }

    /// Literals, template parameters, names in a class (`srSt9is_sameIT_iE5value`), addresses, logic and arithmetic.
    fn expression(&mut self) -> Option<()> {
        self.expressions += 1;
        if self.expressions > MAX_EXPRESSIONS {
            return None;
        }
        self.nested(|this| match this.peek()? {
            b'L' => this.literal(),
            b'T' => this.template_param(),
            _ => {
                let (code, rest) = this.rest.split_at_checked(2)?;
                this.rest = rest;
                let operands = match code {
                    b"sr" => return this.scoped_name(),
                    b"sZ" => return this.template_param(),
                    b"st" => return this.type_(),
                    b"ad" | b"nt" | b"ng" | b"de" => 1,
                    b"aa" | b"oo" | b"eq" | b"ne" | b"lt" | b"gt" | b"le" | b"ge" | b"pl"
                    | b"mi" | b"ml" | b"dv" | b"an" | b"or" | b"ls" | b"rs" => 2,
                    b"qu" => 3,
                    _ => return None,
                };
                (0..operands).try_for_each(|_| this.expression())
            }
        })
    }

    /// What follows `sr`: a type and a name in it, or the names of scopes, `E`, and a name in them.
    fn scoped_name(&mut self) -> Option<()> {
        if self.peek()?.is_ascii_digit() {
            while !self.eat(b'E') {
                self.simple_name()?;
            }
        } else {
            self.type_()?;
        }
        self.simple_name()
    }

    fn simple_name(&mut self) -> Option<()> {
        self.source_name()?;
        if self.peek() == Some(b'I') {
            self.template_args()
        } else {
            Some(())
        }
    }

    /// `Li5E`, `LN1a1bE3E`, `L_Z1fvE`, `LDnE`.
    fn literal(&mut self) -> Option<()> {
        self.expect(b'L')?;
        if self.rest.starts_with(b"_Z") {
            self.rest = &self.rest[2..];
            self.encoding()?;
        } else {
            self.type_()?;
            self.skip_while(|byte| byte.is_ascii_digit() || matches!(byte, b'n' | b'a'..=b'f'));
        }
        self.expect(b'E')
    }

    fn type_(&mut self) -> Option<()> {
        self.nested(|this| match this.peek()? {
            b'v' | b'w' | b'b' | b'c' | b'a' | b'h' | b's' | b't' | b'i' | b'j' | b'l' | b'm'
            | b'x' | b'y' | b'n' | b'o' | b'f' | b'd' | b'e' | b'g' | b'z' => {
                this.next().map(|_| ())
            }
            b'P' | b'R' | b'O' | b'K' | b'V' | b'r' | b'C' | b'G' => {
                this.next();
                this.type_()
            }
            b'D' => this.d_type(),
            b'F' => this.function_type(),
            b'A' => {
                this.next();
                this.skip_while(|byte| byte.is_ascii_digit());
                this.expect(b'_')?;
                this.type_()
            }
            b'M' => {
                this.next();
                this.type_()?;
                this.type_()
            }
            b'T' => {
                this.template_param()?;
                if this.peek() == Some(b'I') {
                    this.template_args()
                } else {
                    Some(())
                }
            }
            b'S' if this.peek_second() != Some(b't') => {
                this.substitution()?;
                if this.peek() == Some(b'I') {
                    this.template_args()
                } else {
                    Some(())
                }
            }
            b'U' if !matches!(this.peek_second(), Some(b't' | b'l')) => {
                this.next();
                this.source_name()?;
                this.type_()
            }
            b'N' | b'Z' | b'S' | b'U' | b'0'..=b'9' => this.name(),
            _ => None,
        })
    }

    fn d_type(&mut self) -> Option<()> {
        self.expect(b'D')?;
        match self.next()? {
            b'd' | b'e' | b'f' | b'h' | b'i' | b's' | b'u' | b'a' | b'c' | b'n' => Some(()),
            b'p' => self.type_(),
            b'o' => self.function_type(),
            b'v' => {
                self.peek().filter(u8::is_ascii_digit)?;
                self.skip_while(|byte| byte.is_ascii_digit());
                self.expect(b'_')?;
                self.type_()
            }
            _ => None,
        }
    }

    fn function_type(&mut self) -> Option<()> {
        self.expect(b'F')?;
        self.eat(b'Y');
        while !self.eat(b'E') {
            if matches!(self.peek(), Some(b'R' | b'O')) && self.peek_second() == Some(b'E') {
                self.next();
                continue;
            }
            self.type_()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn well_formed_names_are_plain() {
        for name in [
            "_Z1fv",
            "_ZN2ns5Class6methodEi",
            "_ZNK4llvm5Value7getNameEv",
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "_ZSt4moveIRiEONSt16remove_referenceIT_E4typeEOS2_",
            "_ZThn16_N1a1fEv",
            "_ZTV3foo",
            "_ZNSsC1EPKcRKSaIcE",
            "_ZZ4mainENKUlvE_clEv",
            "_ZZ1fvE1x_0",
            "_Z1fPFviEM1aKFvvEA3_i",
            "_Z1fILi5EXadL_Z1gvEEEvv.cold",
            "_ZN1aIL_Z1gvEE1fB5cxx11Ev",
            "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc",
            "_ZN1acviEv",
            "_Z1fDpT_",
            "_ZN1aIJicEE1fEv",
            "_Z3fooi.isra.0",
        ] {
            assert!(is_plain(name), "{name}");
        }
    }

    #[test]
    fn others_are_not() {
        for name in [
            "",
            "_Z",
            "main",
            "_Znwnwnwnw!",
            "_Z99f",
            "_ZN1a",
            "_Z1fDTcl1gEE",
            "_Z1fS",
            "_Z1fIXnwnwE",
            "_RNvC1a1f",
            "_Z1f\u{e9}",
        ] {
            assert!(!is_plain(name), "{name}");
        }
        assert!(!is_plain(&format!("_Z1f{}i", "P".repeat(10_000))));
    }
}
