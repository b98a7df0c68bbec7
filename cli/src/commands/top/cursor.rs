//! Selected row of a list. A refresh of the list keeps the row with the same key selected, even if it has moved.

/// Selection in a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    key: Option<String>,
    index: usize,
}

impl Cursor {
    /// Index of the selected row; `None` if the list is empty.
    pub(super) fn among(&self, keys: &[String]) -> Option<usize> {
        let with_key = self.key.as_ref().and_then(|key| keys.iter().position(|other| other == key));
        // If the selected row is gone, the row that is now at its index is selected.
        with_key.or_else(|| keys.len().checked_sub(1).map(|last| self.index.min(last)))
    }

    /// Key of the selected row.
    pub(super) fn chosen(&self, keys: &[String]) -> Option<String> {
        self.among(keys).map(|index| keys[index].clone())
    }

    /// Moves the selection by a number of rows, within the list.
    pub(super) fn move_by(&mut self, rows: isize, keys: &[String]) {
        let Some(index) = self.among(keys) else { return };
        self.index = index.saturating_add_signed(rows).min(keys.len() - 1);
        self.key = Some(keys[self.index].clone());
    }

    /// Stores the index of the selected row after a refresh. If a later refresh removes the row, the selection stays at this
    /// index.
    pub(super) fn settle(&mut self, keys: &[String]) {
        self.move_by(0, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    #[test]
    fn the_chosen_row_stays_chosen_while_others_come_and_go() {
        let keys = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut cursor = Cursor::default();
        assert_eq!(cursor.among(&[]), None);
        cursor.move_by(1, &[]);
        cursor.move_by(1, &keys("a b c"));
        assert_eq!(cursor.chosen(&keys("c x b a")).as_deref(), Some("b"));
        cursor.settle(&keys("c x b a"));
        assert_eq!(cursor.chosen(&keys("c x d a")).as_deref(), Some("d"), "the one in its place");
        cursor.move_by(isize::MAX, &keys("a b"));
        assert_eq!(cursor.chosen(&keys("a b")).as_deref(), Some("b"));
        cursor.move_by(isize::MIN, &keys("a b"));
        assert_eq!(cursor.chosen(&keys("a b")).as_deref(), Some("a"));
    }
}
