//! Items of a message, such as outcomes, that get separate answers: an invalid item never fails the others.

use std::collections::HashSet;

use howdah_proto::v1;

/// Valid items of a message, and answers to the invalid ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items<T> {
    /// Valid items, in the order of the message.
    pub(crate) accepted: Vec<T>,
    /// Answers to invalid items with their indexes in the message, ascending.
    pub(crate) refused: Vec<(usize, v1::SettleResult)>,
}

impl<T> Items<T> {
    /// Separates valid and invalid items.
    pub(super) fn part(items: impl Iterator<Item = Result<T, v1::SettleResult>>) -> Self {
        let mut parted = Self { accepted: Vec::with_capacity(items.size_hint().0), refused: Vec::new() };
        for (index, item) in items.enumerate() {
            match item {
                Ok(item) => parted.accepted.push(item),
                Err(answer) => parted.refused.push((index, answer)),
            }
        }
        parted
    }

    /// Merges the answers to accepted and rejected items, in the order of the message.
    pub(crate) fn answers(
        refused: Vec<(usize, v1::SettleResult)>,
        accepted: impl ExactSizeIterator<Item = v1::SettleResult>,
    ) -> Vec<v1::SettleResult> {
        let mut answers = Vec::with_capacity(refused.len() + accepted.len());
        let mut refused = refused.into_iter().peekable();
        for answer in accepted {
            while let Some((_, early)) = refused.next_if(|&(index, _)| index == answers.len()) {
                answers.push(early);
            }
            answers.push(answer);
        }
        answers.extend(refused.map(|(_, answer)| answer));
        answers
    }
}

/// Keeps the first valid item of each job and replaces later items of the same job by an `answer`. An invalid item does not
/// count as the first, because it has not used the lease.
pub(super) fn refuse_repeats<T>(
    items: impl ExactSizeIterator<Item = Result<T, v1::SettleResult>>,
    id: impl Fn(&T) -> i64,
    answer: impl Fn(usize, T) -> v1::SettleResult,
) -> impl Iterator<Item = Result<T, v1::SettleResult>> {
    let mut seen = HashSet::with_capacity(items.len());
    items.enumerate().map(move |(index, item)| {
        let item = item?;
        if seen.insert(id(&item)) { Ok(item) } else { Err(answer(index, item)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: i64) -> v1::SettleResult {
        v1::SettleResult { id, ..Default::default() }
    }

    #[test]
    fn only_the_first_item_of_a_job_counts() {
        let items = [Ok(7), Ok(8), Ok(7), Err(answer(9)), Ok(9), Ok(7)];
        let kept: Vec<_> =
            refuse_repeats(items.into_iter(), |&id| id, |place, id| answer(id * 100 + place as i64)).collect();
        assert_eq!(kept, [Ok(7), Ok(8), Err(answer(702)), Err(answer(9)), Ok(9), Err(answer(705))]);
    }

    #[test]
    fn answers_come_back_in_the_order_of_the_message() {
        let shapes: [&[bool]; 6] =
            [&[], &[true], &[false], &[false, true, false], &[true, false, false, true], &[false, false]];
        for shape in shapes {
            let items =
                shape.iter().enumerate().map(|(i, &fine)| if fine { Ok(i as i64) } else { Err(answer(i as i64)) });
            let items = Items::part(items);
            let answers = Items::<i64>::answers(items.refused, items.accepted.into_iter().map(answer));
            let ids: Vec<_> = answers.iter().map(|answer| answer.id as usize).collect();
            assert_eq!(ids, (0..shape.len()).collect::<Vec<_>>(), "{shape:?}");
        }
    }
}
