//! Whether a thread is about to die: the kernel has decided to end it, and it waits in a system
//! call.

/// Whether a thread has the signal that none survives. The kernel turns each fatal signal into it
/// (of those that leave a core dump, only `SIGKILL` itself counts here).
pub fn is_dying(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| says_so(&status))
}

fn says_so(status: &str) -> bool {
    const SIGKILL: u32 = 9;
    let pending = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let masks = [pending("SigPnd:"), pending("ShdPnd:")];
    masks.iter().flatten().any(|mask| mask & (1 << (SIGKILL - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_that_none_survives_counts() {
        let status = |own: u64, shared: u64| {
            format!(
                "Name:\tcat\nSigQ:\t1/2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{:x}\n",
                0x100
            )
        };
        assert!(says_so(&status(0x100, 0)) && says_so(&status(0, 0x102)));
        assert!(!says_so(&status(0x4200, 0x2)), "TERM, ALRM and INT have handlers");
        assert!(!says_so("") && !says_so("SigPnd:\tx\n"));
        assert!(!is_dying(std::process::id()) && !is_dying(0));
    }
}
