//! Programs that are made up: a random tree of calls with causes planted in it, as C with its truth in the head comment.
//!
//! Every fourth op is slow. Each peak has one cause, several in turn or at once, or so many equal ones that there is none.
//! The calls on the way are plain ones, through pointers, at the end of a function, at several sites, in loops, and
//! recursive; functions that take next to nothing are called beside them.

use std::fmt::Write;

/// The source of the program of this seed; `work.h` belongs to it.
#[must_use]
pub fn synthetic(seed: u64) -> String {
    let mut random = Random(seed);
    let fast_us = random.between(100, 300);
    let mut program = Program {
        functions: vec![Function::new("serve".to_owned())],
        causes: Vec::new(),
    };
    program.plant(&mut random, Peak::Fast, fast_us);
    let slow_us = fast_us * random.between(8, 16);
    program.plant(&mut random, Peak::Slow, slow_us);
    program.decorate(&mut random);
    program.source(fast_us, slow_us)
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// Both included.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    fn is_one_of(&mut self, so_many: u64) -> bool {
        self.next().is_multiple_of(so_many)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Peak {
    Fast,
    Slow,
}

/// In which ops of its peak a cause is one.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// Three of five.
    Early,
    /// Two of five.
    Late,
}

/// What a cause does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Spins,
    LoopsOverShortCalls,
    LoopsOverLongCalls,
    Waits,
    /// Its time is that of many equal functions.
    Spreads,
}

struct Cause {
    peak: Peak,
    when: When,
    what: What,
    us: u64,
    /// Indices of functions, `serve` first.
    path: Vec<usize>,
}

/// How a function calls another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plainly,
    ThroughPointer,
    AtTheEnd,
    AtThreeSites,
    /// Once, in a loop that makes other calls.
    InLoop,
    /// Three times, a third of the work in each.
    ThreeTimes,
}

struct Function {
    name: String,
    calls: Vec<(usize, How)>,
    /// So often it calls itself before it goes on.
    recursion: usize,
    /// So many short calls beside.
    helpers: u64,
}

impl Function {
    fn new(name: String) -> Function {
        Function {
            name,
            calls: Vec::new(),
            recursion: 0,
            helpers: 0,
        }
    }
}

struct Program {
    functions: Vec<Function>,
    causes: Vec<Cause>,
}

/// The wait of a cause is in whole milliseconds.
const MILLISECOND: u64 = 1_000;
/// So many cycles a short call takes.
const SHORT_CALL: u64 = 900;
/// So many long calls a loop makes.
const LONG_CALLS: u64 = 20;
/// So many equal functions the time is spread over.
const EQUAL: u64 = 8;

impl Program {
    /// The causes of a peak whose ops take so long.
    fn plant(&mut self, random: &mut Random, peak: Peak, us: u64) {
        use When::{Always, Early, Late};
        let parts: &[(When, u64)] = match random.between(0, 9) {
            0..=4 => &[(Always, 94)],
            5..=6 => &[(Early, 94), (Late, 94)],
            7 => &[(Always, 47), (Always, 47)],
            8 => &[(Always, 40), (Always, 30), (Always, 25)],
            _ => &[(Always, 50), (Early, 44), (Late, 44)],
        };
        let is_spread = parts.len() == 1 && random.is_one_of(6);
        for &(when, part) in parts {
            let us = us * part / 100;
            let path = self.path(random);
            let divided = self.divided(&path);
            let what = match random.between(0, 6) {
                _ if is_spread => What::Spreads,
                0 if divided == 1 => What::LoopsOverShortCalls,
                6 if divided == 1 => What::LoopsOverLongCalls,
                // A wait that is longer than it should be leaves the others less than they should have.
                1 if part > 50 && us >= MILLISECOND * divided => What::Waits,
                _ => What::Spins,
            };
            let us = match what {
                What::Waits => us.next_multiple_of(MILLISECOND * divided),
                _ => us,
            };
            self.causes.push(Cause {
                peak,
                when,
                what,
                us,
                path,
            });
        }
    }

    /// A path of its own, the first part of which may be that of another cause.
    fn path(&mut self, random: &mut Random) -> Vec<usize> {
        let length = random.between(1, 6) as usize;
        let mut path = vec![0];
        let known = random.pick(&[0, 1, 2]);
        if let Some(cause) = self.causes.get(known) {
            let shared = random.between(1, cause.path.len() as u64) as usize;
            path = cause.path[..shared].to_vec();
        }
        for _ in 0..length {
            let number = self.functions.len();
            self.functions.push(Function::new(format!("step{number}")));
            let caller = path[path.len() - 1];
            let is_thrice = |at: &usize| self.calls_thrice(*at);
            let how = match random.between(0, 9) {
                0..=3 => How::Plainly,
                4 => How::ThroughPointer,
                5 => How::AtTheEnd,
                6..=7 => How::AtThreeSites,
                8 => How::InLoop,
                _ if path.iter().any(is_thrice) => How::Plainly,
                _ => How::ThreeTimes,
            };
            self.functions[caller].calls.push((number, how));
            path.push(number);
        }
        path
    }

    fn calls_thrice(&self, function: usize) -> bool {
        let calls = &self.functions[function].calls;
        calls.iter().any(|&(_, how)| how == How::ThreeTimes)
    }

    /// What is beside the way to the causes.
    fn decorate(&mut self, random: &mut Random) {
        for function in &mut self.functions[1..] {
            function.helpers = random.pick(&[0, 0, 1, 3]);
            if !function.calls.is_empty() && random.is_one_of(8) {
                function.recursion = random.between(1, 2) as usize;
            }
        }
    }

    /// Into how many calls the work at the end of a path is divided.
    fn divided(&self, path: &[usize]) -> u64 {
        let mut thrice = 0;
        for pair in path.windows(2) {
            let calls = self.functions[pair[0]].calls.iter();
            thrice += calls
                .filter(|&&call| call == (pair[1], How::ThreeTimes))
                .count() as u32;
        }
        3_u64.pow(thrice)
    }

    fn source(&self, fast_us: u64, slow_us: u64) -> String {
        let mut text = String::from(
            "/*\n * A random tree of calls.\n *\n * f0 = serve\n * options: --max-depth 32\n",
        );
        self.state(&mut text, Peak::Fast, fast_us, "fast peak (3 of 4 ops,");
        self.state(&mut text, Peak::Slow, slow_us, "slow peak (1 of 4 ops,");
        text += " */\n#include \"work.h\"\n\nstatic uint32_t wanted;\n\n";
        text += "/* Works for so long, a tenth more or less. */\nINLINE void work(uint64_t key, uint64_t us)\n{\n    spin_cycles(us * CYCLES_PER_US * (90 + mix(key * 77 + 5) % 21) / 100);\n}\n\n";
        text += "FUNCTION uint64_t helper(uint64_t key)\n{\n    return mix(key);\n}\n\n";
        for (number, cause) in self.causes.iter().enumerate() {
            self.leaf(&mut text, number, cause);
        }
        for number in (1..self.functions.len()).rev() {
            self.function(&mut text, number);
        }
        self.serve(&mut text);
        text += "int main(int argc, char **argv)\n{\n    return run_ops(parse_run(argc, argv, 1600), serve);\n}\n";
        text
    }

    /// Adds the truth about a peak.
    fn state(&self, text: &mut String, peak: Peak, us: u64, head: &str) {
        let causes = self.causes.iter().enumerate();
        let causes = causes.filter(|(_, cause)| cause.peak == peak);
        let longest = causes
            .clone()
            .map(|(_, cause)| cause.us)
            .max()
            .unwrap_or(us)
            .max(us);
        let mut head = format!(" * {head} ~{us} to {longest} us):");
        for (number, cause) in causes {
            let path = self.names(cause);
            let said = match cause.what {
                What::Spins => format!("{path}  function"),
                What::LoopsOverShortCalls => format!("{path}  loop"),
                What::LoopsOverLongCalls => format!("{path} -> part{number}_0  function"),
                What::Waits => format!("{path} -> …  syscall"),
                What::Spreads => "spread".to_owned(),
            };
            let _ = writeln!(text, "{head}  {said}");
            head = " *     ".to_owned();
        }
    }

    /// The names on the way to a cause.
    fn names(&self, cause: &Cause) -> String {
        let mut names = Vec::new();
        for &at in &cause.path {
            let function = &self.functions[at];
            names.extend(vec![function.name.as_str(); function.recursion + 1]);
        }
        names.join(" -> ")
    }

    /// What the function at the end of a cause's path calls.
    fn leaf(&self, text: &mut String, number: usize, cause: &Cause) {
        let us = cause.us / self.divided(&cause.path);
        let (count, us) = match cause.what {
            What::LoopsOverShortCalls => (1, SHORT_CALL),
            What::LoopsOverLongCalls => (1, us * 2300 / LONG_CALLS),
            What::Spreads => (EQUAL, us / EQUAL * 2300),
            What::Spins | What::Waits => return,
        };
        for part in 0..count {
            let _ = writeln!(
                text,
                "FUNCTION uint64_t part{number}_{part}(uint64_t key)\n{{\n    spin_cycles({us});\n    return mix(key + {part});\n}}\n"
            );
        }
    }

    fn function(&self, text: &mut String, number: usize) {
        let function = &self.functions[number];
        let name = &function.name;
        if function
            .calls
            .iter()
            .any(|&(_, how)| how == How::ThroughPointer)
        {
            for &(callee, _) in function
                .calls
                .iter()
                .filter(|&&(_, how)| how == How::ThroughPointer)
            {
                let callee = &self.functions[callee].name;
                let _ = writeln!(
                    text,
                    "static uint64_t (*volatile {name}_{callee})(uint64_t) = {callee};\n"
                );
            }
        }
        let _ = writeln!(text, "FUNCTION uint64_t {name}(uint64_t key)\n{{");
        if function.recursion > 0 {
            let _ = writeln!(
                text,
                "    static int depth;\n    if (depth < {}) {{\n        depth++;\n        key = {name}(key) + 1;\n        depth--;\n        return key;\n    }}\n    int before = depth;\n    depth = 99;",
                function.recursion
            );
        }
        for _ in 0..function.helpers {
            text.push_str("    key += helper(key) & 1;\n");
        }
        self.ends(text, number);
        self.calls(text, number);
        if function.recursion > 0 {
            text.push_str("    depth = before;\n");
        }
        text.push_str("    return mix(key + 1);\n}\n\n");
    }

    /// What a function does itself for the causes whose paths end in it.
    fn ends(&self, text: &mut String, number: usize) {
        let ending = self.causes.iter().enumerate();
        for (at, cause) in ending.filter(|(_, cause)| cause.path.last() == Some(&number)) {
            let us = cause.us / self.divided(&cause.path);
            let _ = writeln!(text, "    if (wanted & {:#x}) {{", 1 << at);
            let _ = match cause.what {
                What::Spins => writeln!(text, "        work(key, {us});"),
                What::Waits => writeln!(text, "        poll(NULL, 0, {});", us / MILLISECOND),
                What::LoopsOverShortCalls | What::LoopsOverLongCalls => {
                    let turns = match cause.what {
                        What::LoopsOverShortCalls => us * 2300 / SHORT_CALL,
                        _ => LONG_CALLS,
                    };
                    writeln!(
                        text,
                        "        for (int i = 0; i < {turns}; i++)\n            key = part{at}_0(key) + 1;"
                    )
                }
                What::Spreads => (0..EQUAL).try_for_each(|part| {
                    writeln!(text, "        key = part{at}_{part}(key) ^ {part};")
                }),
            };
            text.push_str("    }\n");
        }
    }

    /// The causes that a call leads to, as bits.
    fn wanted(&self, caller: usize, callee: usize) -> u32 {
        let leads = |cause: &Cause| cause.path.windows(2).any(|pair| pair == [caller, callee]);
        let bits = self.causes.iter().enumerate();
        bits.filter(|(_, cause)| leads(cause))
            .map(|(at, _)| 1 << at)
            .sum()
    }

    fn calls(&self, text: &mut String, number: usize) {
        let function = &self.functions[number];
        for (at, &(callee, how)) in function.calls.iter().enumerate() {
            let name = &self.functions[callee].name;
            let is_last = at + 1 == function.calls.len() && function.recursion == 0;
            let _ = writeln!(
                text,
                "    if (wanted & {:#x}) {{",
                self.wanted(number, callee)
            );
            let _ = match how {
                How::AtTheEnd if is_last => writeln!(text, "        return {name}(key + 3);"),
                How::Plainly | How::AtTheEnd => writeln!(text, "        key = {name}(key) ^ 7;"),
                How::ThroughPointer => {
                    writeln!(text, "        key = {}_{name}(key) ^ 9;", function.name)
                }
                How::AtThreeSites => writeln!(
                    text,
                    "        switch (key % 3) {{\n        case 0:\n            key = {name}(key + 5) ^ 1;\n            break;\n        case 1:\n            key = {name}(key * 3) + 2;\n            break;\n        default:\n            key = {name}(key ^ 77) - 5;\n        }}"
                ),
                How::InLoop => writeln!(
                    text,
                    "        for (int i = 0; i < 6; i++)\n            key = i == 4 ? {name}(key) + 2 : helper(key) + 1;"
                ),
                How::ThreeTimes => writeln!(
                    text,
                    "        for (int i = 0; i < 3; i++)\n            key = {name}(key) + 4;"
                ),
            };
            text.push_str("    }\n");
        }
    }

    fn serve(&self, text: &mut String) {
        for &(callee, how) in &self.functions[0].calls {
            if how == How::ThroughPointer {
                let callee = &self.functions[callee].name;
                let _ = writeln!(
                    text,
                    "static uint64_t (*volatile serve_{callee})(uint64_t) = {callee};\n"
                );
            }
        }
        let of = |peak: Peak, is_early: bool| -> u32 {
            let causes = self.causes.iter().enumerate();
            let wanted = causes.filter(|(_, cause)| {
                cause.peak == peak
                    && match cause.when {
                        When::Always => true,
                        When::Early => is_early,
                        When::Late => !is_early,
                    }
            });
            wanted.map(|(at, _)| 1 << at).sum()
        };
        let _ = writeln!(
            text,
            "FUNCTION uint64_t serve(uint64_t key)\n{{\n    if (key % 4 == 1)\n        wanted = key < 10 ? {:#x} : {:#x};\n    else\n        wanted = key < 12 ? {:#x} : {:#x};",
            of(Peak::Slow, true),
            of(Peak::Slow, false),
            of(Peak::Fast, true),
            of(Peak::Fast, false)
        );
        self.calls(text, 0);
        text.push_str("    return mix(key);\n}\n\n");
    }
}
