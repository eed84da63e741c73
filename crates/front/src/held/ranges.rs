//! Ranges of bytes that one owner has locked: ascending, apart from one another. Pure.

/// A locked range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    /// The first byte behind it; the greatest number: all bytes that the file may have.
    pub end: u64,
    /// Whether it is a write lock.
    pub exclusive: bool,
}

impl Span {
    /// Reads an offset and a length as the protocol has them. `None`: they are no range.
    pub fn new(offset: u64, length: u64, exclusive: bool) -> Option<Self> {
        let end = match length {
            0 => return None,
            u64::MAX => u64::MAX,
            length => offset.checked_add(length)?,
        };
        (offset < end).then_some(Self { start: offset, end, exclusive })
    }

    /// Returns the length as the protocol has it.
    pub fn length(&self) -> u64 {
        if self.end == u64::MAX { u64::MAX } else { self.end - self.start }
    }

    fn meets(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether the two cannot be of two owners.
    pub fn conflicts(&self, other: &Span) -> bool {
        self.meets(other) && (self.exclusive || other.exclusive)
    }
}

/// Takes a range from the locks of an owner: what is locked beside it stays.
pub fn take(spans: &mut Vec<Span>, taken: &Span) {
    let mut left = Vec::with_capacity(spans.len() + 1);
    for span in spans.drain(..) {
        if !span.meets(taken) {
            left.push(span);
            continue;
        }
        if span.start < taken.start {
            left.push(Span { end: taken.start, ..span });
        }
        if taken.end < span.end {
            left.push(Span { start: taken.end, ..span });
        }
    }
    *spans = left;
}

/// Locks a range for an owner, in the place of what the owner has locked there.
pub fn put(spans: &mut Vec<Span>, span: Span) {
    take(spans, &span);
    let at = spans.partition_point(|other| other.start < span.start);
    spans.insert(at, span);
    spans.dedup_by(|next, span| {
        let is_one = span.end == next.start && span.exclusive == next.exclusive;
        if is_one {
            span.end = next.end;
        }
        is_one
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, end: u64, exclusive: bool) -> Span {
        Span { start, end, exclusive }
    }

    #[test]
    fn ranges_are_read_as_the_protocol_has_them() {
        assert_eq!(Span::new(5, 3, true), Some(span(5, 8, true)));
        assert_eq!(Span::new(5, u64::MAX, false), Some(span(5, u64::MAX, false)));
        assert_eq!(Span::new(5, 0, false), None);
        assert_eq!(Span::new(u64::MAX, u64::MAX, false), None);
        assert_eq!(Span::new(u64::MAX - 2, 4, false), None);
        assert_eq!(span(5, 8, true).length(), 3);
        assert_eq!(span(5, u64::MAX, true).length(), u64::MAX);
    }

    #[test]
    fn neighbours_become_one_and_parts_stay() {
        let mut spans = Vec::new();
        put(&mut spans, span(0, 10, false));
        put(&mut spans, span(10, 20, false));
        assert_eq!(spans, [span(0, 20, false)]);
        put(&mut spans, span(5, 15, true));
        assert_eq!(spans, [span(0, 5, false), span(5, 15, true), span(15, 20, false)]);
        take(&mut spans, &span(7, 8, false));
        assert_eq!(spans.len(), 4);
        put(&mut spans, span(0, u64::MAX, false));
        assert_eq!(spans, [span(0, u64::MAX, false)]);
        take(&mut spans, &span(0, u64::MAX, true));
        assert!(spans.is_empty());
    }

    proptest! {
        /// The model: what each byte is locked as.
        #[test]
        fn locks_are_those_of_each_byte(steps in proptest::collection::vec(
            (0u64..32, 1u64..32, 0u8..3), 1..40,
        )) {
            let (mut spans, mut bytes) = (Vec::new(), [None; 64]);
            for (start, length, what) in steps {
                let range = span(start, start + length, what == 1);
                match what {
                    2 => take(&mut spans, &range),
                    _ => put(&mut spans, range),
                }
                bytes[start as usize..(start + length) as usize]
                    .fill((what != 2).then_some(what == 1));
                let mut seen = [None; 64];
                for span in &spans {
                    assert!(span.start < span.end);
                    seen[span.start as usize..span.end as usize].fill(Some(span.exclusive));
                }
                assert_eq!(seen, bytes);
                for pair in spans.windows(2) {
                    let is_one = pair[0].end == pair[1].start
                        && pair[0].exclusive == pair[1].exclusive;
                    assert!(pair[0].end <= pair[1].start && !is_one);
                }
            }
        }
    }
}
