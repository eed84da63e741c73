//! `rekindle formats`, hidden: the formats that this binary understands, asked by the binary that
//! it is to replace.

use crate::arguments::Common;
use rekindle_supervise::formats::Formats;
use rekindle_terminal::output;

/// Runs the command.
pub fn run(common: &Common) {
    let own = Formats::own();
    if common.json {
        output::json(&own);
        return;
    }
    for (name, newest) in &own.formats {
        output::line(&format!("{name:<28} {newest}"));
    }
}
