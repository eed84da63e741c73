//! What happens to calls on their way: stackable, one duty each.
