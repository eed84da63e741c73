//! The word that the user probably meant.

/// Returns the one of `known` that is nearest to `word`, if it is near enough to be a slip.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|&candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= slips(candidate.len().max(word.len())))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns how many letters may differ: a third, and a pair of swapped neighbours in a short word.
fn slips(length: usize) -> usize {
    match length {
        0..=3 => 1,
        4..=5 => 2,
        longer => longer / 3,
    }
}

/// Counts the letters to insert, remove or change.
pub fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, other) in right.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = change.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["store", "nbd", "http", "warm", "flash_budget", "cache"];
        assert_eq!(nearest("stroe", &known), Some("store"));
        assert_eq!(nearest("flash-budget", &known), Some("flash_budget"));
        assert_eq!(nearest("cahce", &known), Some("cache"));
        assert_eq!(nearest("colour", &known), None);
    }
}
