//! A vector in pages: it grows without moving its elements and without reserving twice its size.

const PAGE: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct PagedVec<T> {
    pages: Vec<Vec<T>>,
}

impl<T: Copy + Default> PagedVec<T> {
    pub(super) fn len(&self) -> usize {
        let last = self.pages.last().map_or(0, Vec::len);
        self.pages.len().saturating_sub(1) * PAGE + last
    }

    /// The element at `index`; the default if only a later one was set.
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
