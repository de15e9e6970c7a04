//! Where everything lies that stubs and tracer share: pure numbers, no code.
//!
//! Two mappings in the target. The *control* mapping is private to the process: a forked child gets
//! its own copy and disturbs nobody. The *ring* mapping is shared with the tracer. The stubs are in
//! arenas near the code that they serve.
//!
//! Processors compare the lowest twelve bits of a load's address with those of the stores before it, and
//! let it wait when they are equal (Intel's optimisation manual, "4-KByte aliasing"). What the stubs write
//! in every call therefore begins at different offsets in its pages, also where that looks untidy.

/// Recognises the control mapping of an earlier tracer; the last byte is the layout's version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"darcjmp\x0c");

// The control mapping, offsets in bytes.

/// A page that a fork wipes (MADV_WIPEONFORK): the generation of the plan, zero for "do not measure".
pub const LIVE: u64 = 0;
/// Fields that exist once; see [`header`].
pub const HEADER: u64 = 0x1000;
/// Thread pointer to block: [`TABLE_ENTRIES`] pairs of words.
pub const TABLE: u64 = 0x2000;
/// Where the blocks of the threads are, from the control mapping on, by the stacks that they were last
/// seen on: 32 bits for each 64 KiB of address space, numbered by 16 bits of the address. A guess, that the
/// block's thread pointer confirms; zero for none.
///
/// The stack pointer is known at once, while the table above has its place from a multiplication of a word
/// in memory; and nothing else in a stub can be done before the block is known.
pub const STACKS: u64 = TABLE + TABLE_BYTES + TABLE_MORE;
/// How many bytes of stack have one entry, as a power of two.
pub const STACKS_SHIFT: u32 = 16;
/// The fnodes, [`descriptor`] each.
pub const DESCRIPTORS: u64 = STACKS + (4 << 16) + 0x180;
/// Child lists and target tables.
pub const HEAP: u64 = DESCRIPTORS + FNODES * descriptor::SIZE + 0xb80;
/// Bytes of the heap.
pub const HEAP_BYTES: u64 = 4 << 20;
/// What to put back in the text: [`journal`] entries, in one of two halves. The other is written meanwhile.
pub const JOURNAL: u64 = HEAP + HEAP_BYTES;
/// Bytes of a half of the journal.
pub const JOURNAL_BYTES: u64 = 1 << 20;
/// Memory with code of ours, arenas and pages for trampolines: pairs of address and length. The last word of each is the
/// address of a table that tells unwinders of the code, or zero.
pub const CODE: u64 = JOURNAL + 2 * JOURNAL_BYTES;
/// How many pieces of such memory there can be.
pub const MOST_CODE: usize = 1536;
/// The blocks of the threads.
pub const BLOCKS: u64 = (CODE + 16 * MOST_CODE as u64).next_multiple_of(0x1000);

/// Entries of the table from thread pointers to blocks; a power of two.
pub const TABLE_ENTRIES: u64 = 4096;
/// Bytes of that table.
pub const TABLE_BYTES: u64 = TABLE_ENTRIES * 16;
/// Bytes of more entries behind it: of goroutines the search for one goes on there, and not at the beginning.
pub const TABLE_MORE: u64 = 0x1000;
/// The key of a table entry that was given back.
pub const TABLE_DELETED: u64 = 2;
/// How many goroutines can have a block: the table from descriptors to blocks is never full.
pub const GOROUTINES: u32 = 1024;
/// Beyond all ids of threads (the kernel's `PID_MAX_LIMIT`, 2^22): blocks of goroutines have numbers from here on.
pub const NO_THREAD: i32 = 1 << 23;
/// How many entries are looked at before a thread counts as unknown.
pub const PROBES: u32 = 64;
/// The multiplier of the hash (2^32 divided by the golden ratio; Knuth volume 3, 6.4).
pub const HASH: i32 = 0x9e37_79b1_u32 as i32;
/// How far the hash is shifted right, so that an index of the table remains.
pub const HASH_SHIFT: u32 = 32 - TABLE_ENTRIES.trailing_zeros();

/// How many fnodes there can be, "outside of the ftree" (index zero) included.
pub const FNODES: u64 = 6144;

/// Fields of the header.
pub mod header {
    use crate::plan::Mark;

    /// [`super::MAGIC`].
    pub const MAGIC: u64 = 0;
    /// How many blocks have been handed out (32 bits).
    pub const NEXT_BLOCK: u64 = 8;
    /// How many blocks there are (32 bits).
    pub const BLOCKS: u64 = 12;
    /// Address of the ring mapping.
    pub const RINGS: u64 = 16;
    /// Where a goroutine's number is in its descriptor; zero where threads run no goroutines (32 bits).
    pub const GOROUTINES: u64 = 24;
    /// Entries of the journal, and [`SECOND_HALF`] where they are there: one word, so that both change at
    /// once (32 bits).
    pub const PATCHES: u64 = 28;
    /// The entries are in the second half of the journal.
    pub const SECOND_HALF: u32 = 1 << 31;
    /// How many entries [`super::CODE`] has (32 bits).
    pub const CODE: u64 = 32;
    /// Bytes of the memory shared with the tracer that each block has.
    pub const RING_BYTES: u64 = 40;
    /// How often each [`Mark`] was called: two words.
    const MARKS: u64 = 48;

    /// Which signals the program handles, one bit each, the first for signal 1: who blocks one of them may be in its handler.
    pub const HANDLED: u64 = 64;

    /// Where calls of a marker are counted.
    #[must_use]
    pub fn mark(mark: Mark) -> u64 {
        match mark {
            Mark::Begin => MARKS,
            Mark::End => MARKS + 8,
        }
    }

    /// Blocks that goroutines have left when they ended: one bit each.
    pub const LEFT: u64 = 0x200;
    /// Bytes of that; a power of two, by which it is aligned.
    pub const LEFT_BYTES: u64 = super::GOROUTINES as u64 / 8;
    /// The latency ranges of interest: [`super::filter`] entries, ended by one for all latencies.
    pub const FILTER: u64 = 0x340;
    /// How many ranges there can be, that for all included.
    pub const FILTERS: usize = 33;
}

/// A latency range of interest.
pub mod filter {
    /// Its first latency.
    pub const FIRST: u64 = 0;
    /// Its last.
    pub const LAST: u64 = 8;
    /// Where in the ring its budget is; zero when such ops are only counted.
    pub const BUDGET: u64 = 16;
    /// Bytes.
    pub const SIZE: u64 = 24;
}

/// An fnode as the stubs see it.
pub mod descriptor {
    /// Offset of its accumulator in every block (32 bits).
    pub const NODE: u64 = 0;
    /// The function whose sites lead on from it (32 bits).
    pub const FUNCTION: u64 = 4;
    /// Address of its child list: one word a site of the function. Zero when none is measured.
    pub const CHILDREN: u64 = 8;
    /// Cycles that its calls are delayed by; zero for none.
    pub const DELAY: u64 = 16;
    /// The reading of the time stamp counter from which on they are not any more.
    pub const UNTIL: u64 = 24;
    /// Bytes.
    pub const SIZE: u64 = 32;
    /// No function: an fnode that is not descended into.
    pub const NO_FUNCTION: u32 = u32::MAX;
}

/// The callees seen at one indirect site in one fnode.
pub mod targets {
    /// The fnode of callees that have none of their own; zero for none.
    pub const ANY: u64 = 0;
    /// Pairs of callee and fnode; an fnode of [`PENDING`] or [`UNMEASURED`] is none.
    pub const SLOTS: u64 = 16;
    /// How many pairs; a power of two.
    pub const COUNT: u64 = 32;
    /// Bytes.
    pub const SIZE: u64 = SLOTS + COUNT * 16;
    /// Nobody has said yet what such calls are, or they belong to [`ANY`].
    pub const PENDING: u64 = 0;
    /// Such calls must be left alone.
    pub const UNMEASURED: u64 = 1;
}

/// One patched place of the text.
pub mod journal {
    /// Its address.
    pub const AT: usize = 0;
    /// How many bytes.
    pub const LEN: usize = 8;
    /// The program's own.
    pub const ORIGINAL: usize = 16;
    /// Ours.
    pub const REPLACEMENT: usize = 48;
    /// The longest patch.
    pub const MAX_LEN: usize = 32;
    /// Bytes of an entry.
    pub const SIZE: usize = 80;
}

/// What a thread has to itself.
pub mod block {
    /// The thread pointer.
    pub const THREAD: u64 = 0x00;
    /// The descriptor of the fnode that execution is in.
    pub const CURRENT: u64 = 0x08;
    /// The first free entry of the shadow stack.
    pub const TOP: u64 = 0x10;
    /// Where the shadow stack ends; zero sends the stubs to the slow path.
    pub const LIMIT: u64 = 0x18;
    /// Counts ops: tells whether an accumulator is of this op.
    pub const EPOCH: u64 = 0x20;
    /// Cycles that the stubs took, as calibrated.
    pub const STOLEN: u64 = 0x28;
    /// The thread's ring.
    pub const RING: u64 = 0x30;
    /// The thread's id (32 bits).
    pub const TID: u64 = 0x38;
    /// Whether a record is being written (32 bits).
    pub const BUSY: u64 = 0x3c;
    /// The end of what is written to the ring.
    pub const HEAD: u64 = 0x40;
    /// Where the shadow stack begins.
    pub const BASE: u64 = 0x48;
    /// Where it really ends.
    pub const REAL_LIMIT: u64 = 0x50;
    /// How many accumulators the op has touched (32 bits).
    pub const TOUCHED: u64 = 0x58;
    /// Whether the op in progress is incomplete: the bits below (32 bits).
    pub const TAINTED: u64 = 0x5c;
    /// Some call of it went or may have gone unseen.
    pub const UNSEEN: u32 = 1;
    /// Its calls are not measured, for it will not be recorded ([`super::ring::SPENT`]).
    pub const BARE: u32 = 2;
    /// The generation in which the op began (32 bits).
    pub const GENERATION: u64 = 0x60;
    /// The slot of the unwinder for which return addresses were last put back, of several the outermost. What lies below it is called
    /// by the unwinder, which still reads the stack.
    pub const UNWINDER: u64 = 0x78;

    /// The argument registers that the op was called with: six words.
    pub const ARGUMENTS: u64 = 0x80;
    /// The word at the end of the chain of reads.
    pub const READ: u64 = 0xb0;
    /// Whether all of the chain could be read (32 bits).
    pub const READ_WELL: u64 = 0xb8;

    /// What the field of the surroundings held when the op began, and when it ended (32 bits each). Of a goroutine's block: on which
    /// thread the op began, zero where that is not known, and how often its goroutine has gone on since (32 bits each).
    pub const FIELD: u64 = 0xd0;

    /// Of a goroutine's block: its stack pointer while it is in a stub, which runs on a stack of its own.
    pub const STACK_POINTER: u64 = 0xc0;
    /// The number of the goroutine, which others with the same descriptor do not have.
    pub const GOROUTINE: u64 = 0xc8;
    /// When it stopped running last; zero where that is not known.
    pub const LEFT: u64 = 0xe0;
    /// When it could go on; zero while it waits.
    pub const READY: u64 = 0xe8;
    /// How many records the op has of times in which it was ready all along (32 bits),
    pub const ABSENCES: u64 = 0xf0;
    /// of those in which it waited first, which its calls tell of, too (32 bits),
    pub const WAITS: u64 = 0xf4;
    /// and at most of each.
    pub const MOST_ABSENCES: u32 = 256;
    /// How long it was ready all along without running, and there is no record.
    pub const UNTOLD_READY: u64 = 0xf8;
    /// The return addresses on the stack of who let it go on, the innermost first; zero behind the last.
    pub const WAKER: u64 = 0x100;
    /// Room on that stack, for the frame of a signal, too: C code may have handlers for which no other stack was made. The largest state
    /// of a processor takes 11 KiB (Intel SDM volume 1, section 13.5).
    pub const STACK_BYTES: u64 = 16 << 10;
    /// Where that stack begins.
    pub const PRIVATE_STACK: u64 = SIZE;

    /// Offsets of the touched accumulators, in order (32 bits each).
    pub const TOUCH: u64 = 0x1100;
    /// The shadow stack. Its first entry is a sentinel above every stack.
    pub const SHADOW: u64 = 0x7400;
    /// Where it ends.
    pub const SHADOW_END: u64 = 0xb400;
    /// The accumulators.
    pub const NODES: u64 = 0xb800;
    /// Bytes.
    pub const SIZE: u64 =
        (NODES + super::FNODES * super::node::SIZE + STACK_BYTES).next_multiple_of(0x1000);
}

/// What an fnode did in the op in progress.
pub mod node {
    /// Which one is no fnode's: what calls were delayed by.
    pub const DELAYS: u64 = 0;
    /// The op.
    pub const EPOCH: u64 = 0;
    /// Number of calls.
    pub const COUNT: u64 = 8;
    /// All latencies.
    pub const SUM: u64 = 16;
    /// The largest.
    pub const MAX: u64 = 24;
    /// When that began.
    pub const MAX_START: u64 = 32;
    /// The latencies of long calls.
    pub const LONG: u64 = 40;
    /// Bytes.
    pub const SIZE: u64 = 64;
}

/// A call whose return is awaited.
pub mod entry {
    /// The descriptor that is current again afterwards.
    pub const SAVED: u64 = 0;
    /// The callee's.
    pub const CHILD: u64 = 8;
    /// The stack slot that holds the return address.
    pub const SLOT: u64 = 16;
    /// When it began.
    pub const START: u64 = 24;
    /// The same without what had been stolen until then.
    pub const ADJUSTED: u64 = 32;
    /// What kind of call it is: a [`super::place`].
    pub const PLACE: u64 = 40;
    /// The program's return address, where the place does not know it.
    pub const RETURN_TO: u64 = 48;
    /// The slot of a window: no stack reaches so high, and the sentinel is above it.
    pub const WINDOW_SLOT: i32 = -2;
    /// When the op ended. Until then, where a field of an argument is noted: that argument.
    pub const END: u64 = 56;
    /// Bytes.
    pub const SIZE: u64 = 64;
}

/// Cycles after which the window of a running function ends with the next return to it: a few milliseconds.
pub const WINDOW_CYCLES: i32 = 1 << 23;

/// What is the same for all calls from one stub; lies beside its code.
pub mod place {
    /// The program's return address; zero when each call has its own.
    pub const RETURN_TO: u64 = 0;
    /// The return address that stands in its place; zero when it is not hidden.
    pub const HIDDEN: u64 = 8;
    /// One of the kinds below (32 bits).
    pub const KIND: u64 = 16;
    /// For sites: the function (32 bits).
    pub const FUNCTION: u64 = 20;
    /// For sites: the index in the function (32 bits).
    pub const LOCAL: u64 = 24;
    /// For counted calls at sites: one more than the slot that the caller is counted in; zero for any caller
    /// (32 bits).
    pub const PARENT: u64 = 28;
    /// For measured calls: how far below the slot of its caller that of a call is, signed, or [`NOT_KNOWN`] (32 bits).
    pub const DISTANCE: u64 = 28;
    /// It is not always the same.
    pub const NOT_KNOWN: i32 = i32::MIN;
    /// A measured call, tail call or system call.
    pub const CALL: u32 = 0;
    /// The call of f0 that is the op.
    pub const F0: u32 = 1;
    /// A call of f0 inside an op, by no instrumented way.
    pub const IGNORED: u32 = 2;
    /// A call of a function whose calls are counted; the function is its slot, the index where that lies in
    /// the thread's counts.
    pub const COUNTED: u32 = 3;
    /// A call of the function that serves requests: an op of the second ftree.
    pub const SERVED: u32 = 4;
}

/// What a thread counted of many functions; lies where otherwise its ring is.
pub mod counts {
    /// How many calls began, of every slot.
    pub const BEGUN: u64 = 0x1000;

    /// The starts of the calls in progress, added up.
    pub const STARTS: u64 = 0;
    /// How many calls returned: what the buckets must add up to.
    pub const RETURNED: u64 = 8;
    /// The longest of them.
    pub const MAX: u64 = 16;
    /// Calls that ended otherwise than by returning.
    pub const ABANDONED: u64 = 24;
    /// Calls that began deeper than the shadow stack reaches, and were not followed.
    pub const MISSED: u64 = 32;
    /// Pairs of number and sum for every bucket, numbered as those of [`super::ring::HISTOGRAM`].
    pub const BUCKETS: u64 = 64;
    /// The last bucket is that of `u64::MAX`.
    pub const BUCKET_COUNT: u64 = 496;
    /// Bytes of a slot. No multiple of a page, so that nested functions' counts have different offsets in it.
    pub const SLOT: u64 = 0x1f80;
    /// As many slots as fit an offset of 31 bits.
    pub const MAX_SLOTS: u32 = 1 << 17;

    /// Where a slot is in the thread's memory.
    #[must_use]
    pub fn slot(slot: u32, slots: u32) -> u64 {
        BEGUN + (u64::from(slots) * 8).next_multiple_of(0x1000) + u64::from(slot) * SLOT
    }

    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(slots: u32) -> u64 {
        slot(slots, slots).next_multiple_of(0x1000)
    }
}

/// A thread's ring.
pub mod ring {
    /// End of what was written, counted from the beginning of time.
    pub const HEAD: u64 = 0;
    /// Whose block it is: a thread's id, [`FREE`], [`RECLAIMED`], or zero when nobody has had it yet.
    ///
    /// Who wants to change it compares and exchanges: a thread that takes over the block of an ended one
    /// with its own thread pointer, and the reader when it gives the block to others.
    pub const STATE: u64 = 0xd0;
    /// The block may be taken.
    pub const FREE: u64 = 1 << 32;
    /// The reader is about to free the block.
    pub const RECLAIMED: u64 = 2 << 32;
    /// In the first ring: how many blocks are free.
    pub const FREE_BLOCKS: u64 = 0xd8;
    /// In the first ring: how often a call passed because there was no block for its thread.
    pub const UNREGISTERED: u64 = 0xe0;
    /// Ops that are in the histogram.
    pub const COUNTED: u64 = 0xc0;
    /// Those among them for which a budget was used up.
    pub const SAMPLED: u64 = 0xc8;
    /// Ops that ended otherwise than by returning.
    pub const ENDED_OTHERWISE: u64 = 0xe8;
    /// Records that found no room. Their ops are counted like those outside of the filter.
    pub const DROPPED: u64 = 0xf0;
    /// Set by the thread when all budgets are used up, so that of the ops that begin now only the latency is
    /// needed; cleared by the reader when it refills them.
    pub const SPENT: u64 = 0xf8;
    /// Times in which a goroutine was ready all along and did not run in an op, for which there was no room.
    pub const UNTOLD: u64 = 0x100;
    /// How often the thread was seen on another stack than that of the frames that are awaited.
    pub const SWITCHED: u64 = 0x108;
    /// End of what was read.
    pub const TAIL: u64 = 64;
    /// In the first ring: a number by which the tracer knows the memory.
    pub const MARK: u64 = 128;
    /// In the first ring: a word that tells whether the tracer lives ([`crate::sys::Presence`]), and the tracer's own number.
    pub const OWNER: u64 = 136;
    /// In the first ring: how many there are, the bytes of each, and [`super::MAGIC`] when both are said. Control data is
    /// behind the last.
    pub const BLOCKS: u64 = 152;
    pub const BYTES: u64 = 160;
    pub const MAGIC: u64 = 168;
    /// For each latency range how many more records may be written; refilled by the reader.
    pub const BUDGETS: u64 = 0x200;
    /// The budget of a thread that has just come. Each is enough for some decisions.
    pub const BUDGET: u64 = 64;
    /// Latencies of ops without a record: pairs of number and sum for every bucket.
    pub const HISTOGRAM: u64 = 0x1c00;
    /// Number of buckets: eight an octave.
    pub const BUCKETS: u64 = 512;
    /// The records.
    pub const DATA: u64 = 0x4000;
    /// Bytes of records; a power of two.
    pub const DATA_BYTES: u64 = 256 << 10;
    /// Bytes.
    pub const SIZE: u64 = DATA + DATA_BYTES;
}

/// A record in a ring.
pub mod record {
    /// Bytes of the record (32 bits).
    pub const LEN: u64 = 0;
    /// One of the kinds below (32 bits).
    pub const KIND: u64 = 4;
    /// Bytes of a record without items.
    pub const HEAD: u64 = 136;

    /// An op.
    pub const OP: u32 = 1;
    /// Nothing: the rest of the ring.
    pub const PADDING: u32 = 2;
    /// A callee seen first at an indirect site.
    pub const TARGET: u32 = 3;
    /// A call of the function by which an op hands a request over.
    pub const ENQUEUED: u32 = 4;
    /// A time in which a goroutine did not run.
    pub const ABSENCE: u32 = 5;

    /// Op: when f0 was entered.
    pub const START: u64 = 8;
    /// Op: when f0 returned.
    pub const END: u64 = 16;
    /// Op: latency without what was stolen.
    pub const LATENCY: u64 = 24;
    /// Op: generation at its start (32 bits).
    pub const BEGAN: u64 = 32;
    /// Op: generation at its end (32 bits).
    pub const ENDED: u64 = 36;
    /// Op: number of items (32 bits).
    pub const ITEMS: u64 = 40;
    /// Op: whether it is incomplete (32 bits).
    pub const TAINTED: u64 = 44;
    /// Op: the thread (32 bits).
    pub const TID: u64 = 48;
    /// Op: the argument registers, six words.
    pub const ARGUMENTS: u64 = 56;
    /// Op: the word at the end of the chain of reads.
    pub const READ: u64 = 104;
    /// Op: whether all of the chain could be read (32 bits).
    pub const READ_WELL: u64 = 112;
    /// Op: the descriptor of the root of its ftree. Enqueued: that of the fnode that was current.
    pub const FNODE: u64 = 120;
    /// Op: what the field held when it began, and when it ended (32 bits each). A goroutine's: as
    /// [`block::FIELD`](super::block::FIELD).
    pub const FIELD: u64 = 128;

    /// Absence: when the goroutine could go on; [`START`] and [`END`] are when it stopped and did go on.
    pub const READY: u64 = 24;
    /// Absence: [`block::WAKER`](super::block::WAKER).
    pub const WAKER: u64 = 56;
    /// Absence: how many words that is.
    pub const WAKER_WORDS: u64 = 9;
    /// Absence: the thread that it goes on on, zero where that is not known (32 bits).
    pub const THREAD: u64 = 128;

    /// Item: offset of the accumulator in the block (32 bits).
    pub const ITEM_NODE: u64 = 0;
    /// Item: the latencies of long calls, without their last [`ITEM_LONG_BITS`] bits (32 bits, or all ones for more).
    pub const ITEM_LONG: u64 = 4;
    /// How many bits are left out of that.
    pub const ITEM_LONG_BITS: u32 = 8;
    /// Item: the first four words of the accumulator.
    pub const ITEM_VALUES: u64 = 8;
    /// Bytes of an item.
    pub const ITEM: u64 = 40;

    /// Target: the descriptor of the fnode.
    pub const PARENT: u64 = 8;
    /// Target: the place of the site.
    pub const PLACE: u64 = 16;
    /// Target: the callee.
    pub const CALLEE: u64 = 24;
    /// Target: where the callee's fnode is to be written.
    pub const ANSWER: u64 = 32;
}

/// The bucket of a latency in a ring's histogram: eight an octave, exact below sixteen. The stubs compute
/// the same; this is what tests compare them with.
#[cfg(test)]
#[must_use]
pub fn bucket(latency: u64) -> u64 {
    match latency {
        0..16 => latency,
        _ => {
            let octave = u64::from(latency.ilog2()) - 3;
            octave * 8 + (latency >> octave)
        }
    }
}

/// The smallest latency of a bucket.
#[must_use]
pub fn bucket_start(bucket: u64) -> u64 {
    match bucket {
        0..16 => bucket,
        _ => {
            let octave = (bucket / 8 - 1).min(60);
            (bucket % 8 + 8) << octave
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_overlap_and_are_aligned() {
        const {
            assert!(header::FILTER + filter::SIZE * header::FILTERS as u64 <= TABLE - HEADER);
            assert!(ring::BUDGETS + 8 * header::FILTERS as u64 <= ring::HISTOGRAM);
            assert!(block::TOUCH + 4 * FNODES <= block::SHADOW);
            assert!(header::LEFT_BYTES.is_power_of_two());
            assert!(header::LEFT.is_multiple_of(header::LEFT_BYTES));
            assert!(header::LEFT + header::LEFT_BYTES <= header::FILTER);
            assert!(PROBES as u64 * 16 <= TABLE_MORE);
            assert!(BLOCKS.is_multiple_of(4096) && block::SIZE.is_multiple_of(4096));
            assert!(ring::HISTOGRAM + 16 * ring::BUCKETS <= ring::DATA);
            assert!(ring::SIZE.is_multiple_of(4096) && ring::DATA_BYTES.is_power_of_two());
            assert!(counts::BUCKETS + 16 * counts::BUCKET_COUNT <= counts::SLOT);
            // An op with more than half of this may be dropped, as where the reader is late.
            assert!(record::HEAD + FNODES * record::ITEM < ring::DATA_BYTES);
            assert!(BLOCKS + TABLE_ENTRIES * block::SIZE < 1 << 31);
        }
    }

    #[test]
    fn counts_are_within_reach_of_an_offset() {
        assert!(counts::bytes(counts::MAX_SLOTS) < 1 << 31);
        assert_eq!(bucket(u64::MAX), counts::BUCKET_COUNT - 1);
    }

    #[test]
    fn buckets_are_contiguous_and_ordered() {
        for latency in (0..5000).chain([1 << 40, u64::MAX / 3, u64::MAX]) {
            let index = bucket(latency);
            assert!(index < ring::BUCKETS, "{latency}");
            assert!(bucket_start(index) <= latency, "{latency}");
            if index + 1 < 496 {
                assert!(bucket_start(index + 1) > latency, "{latency}");
            }
        }
    }
}
