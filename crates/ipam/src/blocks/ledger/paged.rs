//! A long list that grows without being moved, and without room for twice as much.

const PAGE: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Paged<T> {
    pages: Vec<Vec<T>>,
}

impl<T: Copy + Default> Paged<T> {
    pub(super) fn len(&self) -> usize {
        let last = self.pages.last().map_or(0, Vec::len);
        self.pages.len().saturating_sub(1) * PAGE + last
    }

    /// What was set there; the default, if only something behind it was.
    pub(super) fn get(&self, index: usize) -> Option<T> {
        self.pages.get(index / PAGE)?.get(index % PAGE).copied()
    }

    pub(super) fn set(&mut self, index: usize, value: T) {
        while self.len() <= index {
            match self.pages.last_mut() {
                Some(page) if page.len() < PAGE => page.push(T::default()),
                _ => {
                    let mut page = Vec::with_capacity(PAGE);
                    page.push(T::default());
                    self.pages.push(page);
                }
            }
        }
        self.pages[index / PAGE][index % PAGE] = value;
    }
}
