//! Dominators and natural loops of a function (Cooper, Harvey and Kennedy, "A Simple, Fast
//! Dominance Algorithm", 2001; Aho, Lam, Sethi and Ullman, section 9.6).

use std::ops::Range;

use iced_x86::Mnemonic;

use crate::Cfg;

/// How far the search may go for one function, which may be hostile: real ones need thousands of steps.
const STEPS: usize = 1 << 26;
/// How many blocks and edges all loops of one function may have together: a block counts in each loop around it.
const MOST_IN_LOOPS: usize = 1 << 22;

/// Which block every path to a block runs through. Blocks that nothing is known to lead to (landing
/// pads, the cases of a jump that was not recovered) count as entered from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dominators {
    /// Immediate dominator by block; None for those that are entered from outside or never.
    parents: Vec<Option<usize>>,
    /// When a walk through the tree of dominators comes to a block, and when it has left all blocks below.
    visits: Vec<Range<usize>>,
}

impl Dominators {
    /// The dominators of the blocks of `cfg`.
    pub fn new(cfg: &Cfg) -> Self {
        let blocks = cfg.blocks();
        let entry = cfg.block_of(cfg.entry());
        let is_root = |b: usize| {
            let unknown = blocks[b].predecessors.is_empty() && !is_padding(cfg, b);
            Some(b) == entry || unknown
        };
        let order = reverse_postorder(cfg, &is_root);
        // The virtual root, which leads to all roots, comes first.
        let root = blocks.len();
        let mut rank = vec![usize::MAX; blocks.len() + 1];
        rank[root] = 0;
        for (at, &block) in order.iter().enumerate() {
            rank[block] = at + 1;
        }
        let mut parents: Vec<Option<usize>> = vec![None; blocks.len() + 1];
        parents[root] = Some(root);
        let mut steps = STEPS;
        let mut changed = true;
        while changed && steps > 0 {
            changed = false;
            for &block in &order {
                let outside = is_root(block).then_some(root);
                let parent = outside
                    .into_iter()
                    .chain(blocks[block].predecessors.iter().copied())
                    .filter(|&p| parents[p].is_some())
                    .reduce(|a, b| meet(&parents, &rank, &mut steps, a, b));
                if parents[block] != parent {
                    parents[block] = parent;
                    changed = true;
                }
            }
        }
        if steps == 0 {
            parents.fill(None);
        }
        parents.truncate(blocks.len());
        for parent in &mut parents {
            *parent = parent.filter(|&p| p != root);
        }
        Self {
            visits: visits(&parents),
            parents,
        }
    }

    /// The closest other block that every path to `block` runs through.
    pub fn immediate(&self, block: usize) -> Option<usize> {
        self.parents.get(block).copied().flatten()
    }

    /// Whether every path to `block` runs through `over`; a block dominates itself.
    pub fn dominates(&self, over: usize, block: usize) -> bool {
        match (self.visits.get(over), self.visits.get(block)) {
            (Some(over), Some(block)) => over.contains(&block.start),
            _ => false,
        }
    }
}

/// Walks through the trees that these parents make.
fn visits(parents: &[Option<usize>]) -> Vec<Range<usize>> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    let mut open = Vec::new();
    for (block, parent) in parents.iter().enumerate() {
        match parent {
            Some(parent) => children[*parent].push(block),
            None => open.push((block, Visit::Comes)),
        }
    }
    let mut visits = vec![0..0; parents.len()];
    let mut time = 0;
    while let Some((block, visit)) = open.pop() {
        match visit {
            Visit::Comes => {
                visits[block].start = time;
                time += 1;
                open.push((block, Visit::Leaves));
                open.extend(children[block].iter().map(|&child| (child, Visit::Comes)));
            }
            Visit::Leaves => visits[block].end = time,
        }
    }
    visits
}

#[derive(Clone, Copy)]
enum Visit {
    Comes,
    Leaves,
}

/// Whether a block does nothing: what compilers fill up with, so that a loop begins at an even address.
fn is_padding(cfg: &Cfg, block: usize) -> bool {
    let mut instructions = cfg.instructions()[cfg.blocks()[block].instructions.clone()].iter();
    instructions.all(|instruction| instruction.mnemonic() == Mnemonic::Nop)
}

/// Closest common dominator of two blocks; anything once no steps are left.
fn meet(
    parents: &[Option<usize>],
    rank: &[usize],
    steps: &mut usize,
    mut a: usize,
    mut b: usize,
) -> usize {
    while a != b && *steps > 0 {
        *steps -= 1;
        let later = if rank[a] > rank[b] { &mut a } else { &mut b };
        match parents[*later] {
            Some(parent) => *later = parent,
            None => break,
        }
    }
    a
}

fn reverse_postorder(cfg: &Cfg, is_root: &dyn Fn(usize) -> bool) -> Vec<usize> {
    let blocks = cfg.blocks();
    let mut seen = vec![false; blocks.len()];
    let mut order = Vec::with_capacity(blocks.len());
    for root in (0..blocks.len()).filter(|&b| is_root(b)) {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some((block, next)) = path.last_mut() {
            match blocks[*block].successors.get(*next) {
                Some(&successor) => {
                    *next += 1;
                    if !std::mem::replace(&mut seen[successor], true) {
                        path.push((successor, 0));
                    }
                }
                None => {
                    order.push(*block);
                    path.pop();
                }
            }
        }
    }
    order.reverse();
    order
}

/// Blocks that run again and again: all that reach a back edge without leaving through the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The block through which the loop is entered.
    pub header: usize,
    /// All blocks of the loop, nested loops included, in order.
    pub blocks: Vec<usize>,
    /// Position of the smallest loop around this one.
    pub parent: Option<usize>,
    /// 1 for an outermost loop.
    pub depth: usize,
}

/// The natural loops of a function, outer loops before the loops inside them. Cycles with several
/// entries have no header and are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loops {
    loops: Vec<Loop>,
    innermost: Vec<Option<usize>>,
}

impl Loops {
    /// The loops of `cfg`; none in a function with absurdly many.
    pub fn new(cfg: &Cfg) -> Self {
        let dominators = Dominators::new(cfg);
        let mut loops: Vec<Loop> = Vec::new();
        let mut bodies = Bodies::new(cfg, &dominators);
        for (header, block) in cfg.blocks().iter().enumerate() {
            let is_back_edge = |&tail: &usize| dominators.dominates(header, tail);
            let tails: Vec<_> = block
                .predecessors
                .iter()
                .copied()
                .filter(is_back_edge)
                .collect();
            if !tails.is_empty() {
                let Some(blocks) = bodies.of(header, tails) else {
                    return Self::default();
                };
                loops.push(Loop {
                    header,
                    blocks,
                    parent: None,
                    depth: 1,
                });
            }
        }
        // A loop has fewer blocks than the loop around it.
        loops.sort_by_key(|l| (std::cmp::Reverse(l.blocks.len()), l.header));
        let mut innermost = vec![None; cfg.blocks().len()];
        for at in 0..loops.len() {
            let parent = innermost[loops[at].header];
            loops[at].parent = parent;
            loops[at].depth = parent.map_or(0, |p: usize| loops[p].depth) + 1;
            for &block in &loops[at].blocks {
                innermost[block] = Some(at);
            }
        }
        Self { loops, innermost }
    }

    /// All loops.
    pub fn all(&self) -> &[Loop] {
        &self.loops
    }

    /// Position of the smallest loop around `block`.
    pub fn innermost(&self, block: usize) -> Option<usize> {
        self.innermost.get(block).copied().flatten()
    }
}

/// Finds the blocks of loops.
struct Bodies<'a> {
    cfg: &'a Cfg,
    dominators: &'a Dominators,
    /// The header of the loop for which a block was looked at last.
    seen: Vec<Option<usize>>,
    /// What is left of [`MOST_IN_LOOPS`].
    left: usize,
}

impl<'a> Bodies<'a> {
    fn new(cfg: &'a Cfg, dominators: &'a Dominators) -> Self {
        Self {
            cfg,
            dominators,
            seen: vec![None; cfg.blocks().len()],
            left: MOST_IN_LOOPS,
        }
    }

    /// All that reaches `tails` without running through `header`; `None` once there is too much of it.
    fn of(&mut self, header: usize, tails: Vec<usize>) -> Option<Vec<usize>> {
        self.seen[header] = Some(header);
        let mut blocks = vec![header];
        let mut open = tails;
        while let Some(block) = open.pop() {
            if self.seen[block].replace(header) == Some(header) {
                continue;
            }
            blocks.push(block);
            let before = &self.cfg.blocks()[block].predecessors;
            self.left = self.left.checked_sub(1 + before.len())?;
            // Padding leads into the loop, and nothing leads to it.
            let inside = before.iter().copied();
            open.extend(inside.filter(|&block| self.dominators.dominates(header, block)));
        }
        blocks.sort_unstable();
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodePart, FunctionCode, NoMemory};

    fn cfg(bytes: &[u8]) -> Cfg {
        let part = CodePart {
            start: 0x1000,
            bytes: bytes.to_vec(),
        };
        Cfg::build(&FunctionCode::new(vec![part]).unwrap(), &NoMemory)
    }

    #[test]
    fn nested_loops() {
        // 0: nop; 1: nop; 2: jne 2; 4: jne 1; 6: ret
        let cfg = cfg(&[0x90, 0x90, 0x75, 0xfe, 0x75, 0xfb, 0xc3]);
        let loops = Loops::new(&cfg);
        let inner = cfg.block_of(0x1002).unwrap();
        let outer = cfg.block_of(0x1001).unwrap();
        assert_eq!(
            loops.all(),
            [
                Loop {
                    header: outer,
                    blocks: vec![outer, inner, inner + 1],
                    parent: None,
                    depth: 1,
                },
                Loop {
                    header: inner,
                    blocks: vec![inner],
                    parent: Some(0),
                    depth: 2,
                }
            ]
        );
        assert_eq!(loops.innermost(inner), Some(1));
        assert_eq!(loops.innermost(outer), Some(0));
        assert_eq!(loops.innermost(0), None);
    }

    #[test]
    fn dominators_of_a_diamond() {
        // 0: je 5; 2: nop; 3: jmp 6; 5: nop; 6: ret
        let cfg = cfg(&[0x74, 3, 0x90, 0xeb, 1, 0x90, 0xc3]);
        let dominators = Dominators::new(&cfg);
        let parents: Vec<_> = (0..4).map(|b| dominators.immediate(b)).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(0)]);
        assert!(dominators.dominates(0, 3) && dominators.dominates(3, 3));
        assert!(!dominators.dominates(1, 3) && !dominators.dominates(3, 0));
    }

    #[test]
    fn padding_before_a_loop_is_no_second_entry() {
        // 0: jmp 5; 2: nop; 3: inc eax; 5: jne 3; 7: ret
        let cfg = cfg(&[0xeb, 3, 0x90, 0xff, 0xc0, 0x75, 0xfc, 0xc3]);
        let loops = Loops::new(&cfg);
        let header = cfg.block_of(0x1005).unwrap();
        assert_eq!(loops.all().len(), 1);
        assert_eq!(loops.all()[0].header, header);
        assert_eq!(loops.all()[0].blocks.len(), 2);
    }

    #[test]
    fn a_cycle_with_two_entries_is_no_natural_loop() {
        // 0: je 3; 2: nop; 3: nop; 4: jne 2; 6: ret
        let cfg = cfg(&[0x74, 1, 0x90, 0x90, 0x75, 0xfc, 0xc3]);
        assert!(Loops::new(&cfg).all().is_empty());
    }

    #[test]
    fn a_jump_to_the_entry_is_a_loop() {
        let cfg = cfg(&[0x90, 0x75, 0xfd, 0xc3]); // 0: nop; 1: jne 0; 3: ret
        assert_eq!(Loops::new(&cfg).all()[0].blocks, [0]);
    }

    #[test]
    fn absurdly_many_nested_loops_are_none() {
        // So many nops, then a jump back to each, the last one first: jne, to 6 bytes and one nop farther each time.
        let nested = 5_000;
        let mut bytes = vec![0x90; nested];
        for at in 0..nested {
            let back = -i32::try_from(at * 7 + 7).unwrap();
            bytes.extend([0x0f, 0x85]);
            bytes.extend(back.to_le_bytes());
        }
        bytes.push(0xc3);
        let cfg = cfg(&bytes);
        assert_eq!(cfg.blocks().len(), 2 * nested);
        assert_eq!(Loops::new(&cfg), Loops::default());
    }
}
