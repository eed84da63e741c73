use super::*;

fn gaps(checkpoint: u64, serials: &[u64]) -> Option<String> {
    missing(Serial(checkpoint), serials.iter().map(|&serial| Serial(serial)))
}

#[test]
fn missing_serials_are_named_exactly() {
    assert_eq!(gaps(0, &[]), None);
    assert_eq!(gaps(0, &[1, 2, 3]), None);
    assert_eq!(gaps(7, &[8, 9]), None);
    assert_eq!(gaps(0, &[2]).as_deref(), Some("1"));
    assert_eq!(gaps(7, &[8, 10, 14]).as_deref(), Some("9, 11-13"));
    assert_eq!(gaps(7, &[10]).as_deref(), Some("8-9"));
}
