//! What can be chosen from in options, as clap shows it.

use clap::ValueEnum;

use crate::listing::Order;
use crate::options::{
    Blocks, ColorChoice, DelayBy, EngineChoice, Format, ListingFormat, Method, Preemption,
    SampleFormat,
};

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum DelayByArg {
    /// It works, as for a cause that computes
    Spin,
    /// It sleeps, as for a cause that waits
    Sleep,
}

impl From<DelayByArg> for DelayBy {
    fn from(how: DelayByArg) -> Self {
        match how {
            DelayByArg::Spin => DelayBy::Spin,
            DelayByArg::Sleep => DelayBy::Sleep,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum ProfileFormatArg {
    /// For people, and for darc compare
    Text,
    /// For programs, and for darc compare
    Json,
    /// Histograms and heat maps as a picture
    Svg,
    /// One page for a browser
    Html,
}

impl From<ProfileFormatArg> for Format {
    fn from(format: ProfileFormatArg) -> Self {
        match format {
            ProfileFormatArg::Text => Format::Text,
            ProfileFormatArg::Json => Format::Json,
            ProfileFormatArg::Svg => Format::Svg,
            ProfileFormatArg::Html => Format::Html,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum FormatArg {
    /// For people, and for darc resume
    Text,
    /// For programs, and for darc resume
    Json,
    /// Folded stacks, for flame graphs
    Folded,
    /// For speedscope
    Speedscope,
    /// For callgrind_annotate and KCachegrind
    Callgrind,
    /// The histogram as a picture
    Svg,
    /// One page for a browser
    Html,
    /// Trace events, for Perfetto and chrome://tracing
    Chrome,
    /// For go tool pprof and what reads its files
    Pprof,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum ListingFormatArg {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum BlocksArg {
    /// Name the function
    Left,
    /// Also its loop, block and line, once all paths have ended
    After,
    /// The same, with the calls of every function measured block by block
    First,
}

impl From<BlocksArg> for Blocks {
    fn from(blocks: BlocksArg) -> Self {
        match blocks {
            BlocksArg::Left => Blocks::Left,
            BlocksArg::After => Blocks::After,
            BlocksArg::First => Blocks::First,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum PreemptionArg {
    /// Apart, as a contributor of its own
    Apart,
    /// In the function that was preempted
    Counted,
}

impl From<PreemptionArg> for Preemption {
    fn from(preemption: PreemptionArg) -> Self {
        match preemption {
            PreemptionArg::Apart => Preemption::Apart,
            PreemptionArg::Counted => Preemption::Counted,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum SampleFormatArg {
    /// For people
    Text,
    /// For programs
    Json,
    /// Folded stacks, for flame graphs
    Folded,
    /// For speedscope
    Speedscope,
    /// For go tool pprof and what reads its files
    Pprof,
}

impl From<SampleFormatArg> for SampleFormat {
    fn from(format: SampleFormatArg) -> Self {
        match format {
            SampleFormatArg::Text => SampleFormat::Text,
            SampleFormatArg::Json => SampleFormat::Json,
            SampleFormatArg::Folded => SampleFormat::Folded,
            SampleFormatArg::Speedscope => SampleFormat::Speedscope,
            SampleFormatArg::Pprof => SampleFormat::Pprof,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum OrderArg {
    /// By name
    Name,
    /// The largest first
    Size,
    /// By module and address
    Address,
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Name => Order::Name,
            OrderArg::Size => Order::Size,
            OrderArg::Address => Order::Address,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum MethodArg {
    /// Earth Mover's Distance: how far ops moved, in doublings of the latency
    Emd,
    /// Chi-square distance of the distributions, 0 to 1
    ChiSquare,
    /// Difference of the numbers of ops, 0 to 1
    Ops,
    /// Difference of the total latencies, 0 to 1
    Latency,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum EngineArg {
    /// Breakpoints: works everywhere, slow
    Int3,
    /// Jumps to stubs in the target: fast
    Jump,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum ColorArg {
    Auto,
    Always,
    Never,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
            FormatArg::Folded => Format::Folded,
            FormatArg::Speedscope => Format::Speedscope,
            FormatArg::Callgrind => Format::Callgrind,
            FormatArg::Svg => Format::Svg,
            FormatArg::Html => Format::Html,
            FormatArg::Chrome => Format::Chrome,
            FormatArg::Pprof => Format::Pprof,
        }
    }
}

impl From<ListingFormatArg> for ListingFormat {
    fn from(format: ListingFormatArg) -> Self {
        match format {
            ListingFormatArg::Text => ListingFormat::Text,
            ListingFormatArg::Json => ListingFormat::Json,
        }
    }
}

impl From<MethodArg> for Method {
    fn from(method: MethodArg) -> Self {
        match method {
            MethodArg::Emd => Method::Emd,
            MethodArg::ChiSquare => Method::ChiSquare,
            MethodArg::Ops => Method::Ops,
            MethodArg::Latency => Method::Latency,
        }
    }
}

impl From<EngineArg> for EngineChoice {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Int3 => EngineChoice::Int3,
            EngineArg::Jump => EngineChoice::Jump,
        }
    }
}

impl From<ColorArg> for ColorChoice {
    fn from(color: ColorArg) -> Self {
        match color {
            ColorArg::Auto => ColorChoice::Auto,
            ColorArg::Always => ColorChoice::Always,
            ColorArg::Never => ColorChoice::Never,
        }
    }
}
