// Tables: sorted, filtered, by pages; a row is changed in place, so that focus and selection stay.

import { button, h, replace, setText } from './dom.js';
import { counted } from './words.js';

/**
 * @template R
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: R) => string | number} value for sorting; what is shown without `show`
 * @property {(row: R) => Node | string} [show] called when the row has changed
 * @property {boolean} [isNumeric]
 * @property {boolean} [isCode]
 */

/**
 * @template R
 * @typedef {object} TableOptions
 * @property {string} caption
 * @property {Column<R>[]} columns
 * @property {(row: R) => string} key
 * @property {string} empty the text without rows
 * @property {number} [sortedBy] the index of a column; by default the order of the rows stays
 * @property {boolean} [isDescending]
 * @property {{label: string, text: (row: R) => string}} [filter]
 */

const PAGE = 100;
/** A longer text makes its column wide, where a narrow one would make the row high. */
const WORDS = 40;
const order = new Intl.Collator('en', { numeric: true });
let tables = 0;

/** @template R */
export class DataTable {
  /** The table with its controls. */
  element;
  /** Beside the filter. */
  controls = h('div', { class: 'controls' });
  #options;
  /** @type {R[]} */ #rows = [];
  /** The text without rows. */ #empty;
  /** False before the first rows: nothing is known yet. */ #isKnown = false;
  #page = 0;
  /** @type {number | null} */ #sortedBy;
  #isDescending;
  #words = '';
  /** The key of the marked row. @type {string | null} */ #marked = null;
  #hasShownMark = false;
  /** @type {Map<string, {content: string, element: HTMLTableRowElement}>} */
  #shown = new Map();
  #body = h('tbody');
  #count = h('span', { class: 'quiet', role: 'status' });
  #pager = h('span', { class: 'pager' });
  /** @type {HTMLTableCellElement[]} */ #titles;

  /** @param {TableOptions<R>} options */
  constructor(options) {
    this.#options = options;
    this.#empty = options.empty;
    this.#sortedBy = options.sortedBy ?? null;
    this.#isDescending = options.isDescending ?? false;
    this.#titles = options.columns.map((column, index) => this.#title(column, index));
    const head = h('thead', {}, h('tr', {}, ...this.#titles));
    const caption = h('caption', { class: 'for-readers' }, options.caption);
    const table = h('table', { class: 'data' }, caption, head, this.#body);
    const name = { role: 'region', 'aria-label': options.caption };
    const scroll = h('div', { class: 'scroll', ...name }, table);
    if (options.filter) this.controls.append(this.#filter(options.filter.label));
    this.controls.append(this.#count, this.#pager);
    this.element = h('div', { class: 'table' }, this.controls, sidewaysHint(scroll), scroll);
    this.#render();
  }

  /**
   * @param {R[]} rows
   * @param {string} [empty] the text if there are none, where it is not that of the options
   */
  update(rows, empty = this.#options.empty) {
    this.#rows = rows;
    this.#empty = empty;
    this.#isKnown = true;
    if (this.#marked !== null && !this.#hasShownMark) this.#turnToMark(this.#marked);
    this.#render();
  }

  /**
   * Marks a row. The table opens at its page.
   *
   * @param {string} key
   */
  mark(key) {
    this.#marked = key;
    if (this.#isKnown) this.update(this.#rows, this.#empty);
  }

  /** @param {string} marked */
  #turnToMark(marked) {
    const { key } = this.#options;
    const index = this.#selected().findIndex((row) => key(row) === marked);
    if (index < 0) return;
    this.#page = Math.floor(index / PAGE);
    this.#hasShownMark = true;
  }

  /** @param {string} label */
  #filter(label) {
    const id = `filter-${++tables}`;
    const input = h('input', { id, type: 'search', placeholder: label, autocomplete: 'off' });
    input.addEventListener('input', () => {
      this.#words = input.value.toLowerCase();
      this.#page = 0;
      this.#render();
    });
    return h('span', {}, h('label', { for: id, class: 'for-readers' }, label), input);
  }

  /**
   * @param {Column<R>} column
   * @param {number} index
   */
  #title(column, index) {
    const sort = button(column.title, () => {
      this.#isDescending = this.#sortedBy === index ? !this.#isDescending : !!column.isNumeric;
      this.#sortedBy = index;
      this.#page = 0;
      this.#render();
    });
    return h('th', { scope: 'col', class: column.isNumeric && 'numeric' }, sort);
  }

  #selected() {
    const { filter, columns } = this.#options;
    const words = this.#words.split(/\s+/).filter((word) => word !== '');
    const matches = (/** @type {R} */ row) => {
      const text = filter?.text(row).toLowerCase() ?? '';
      return words.every((word) => text.includes(word));
    };
    const rows = words.length > 0 ? this.#rows.filter(matches) : [...this.#rows];
    const column = this.#sortedBy === null ? undefined : columns[this.#sortedBy];
    if (column) {
      const sign = this.#isDescending ? -1 : 1;
      rows.sort((a, b) => sign * compare(column.value(a), column.value(b)));
    }
    return rows;
  }

  #render() {
    const selected = this.#selected();
    const pages = Math.max(1, Math.ceil(selected.length / PAGE));
    this.#page = Math.min(this.#page, pages - 1);
    const rows = selected.slice(this.#page * PAGE, (this.#page + 1) * PAGE);
    const { key, columns } = this.#options;
    const shown = new Map();
    const elements = rows.map((row) => {
      const [name, content] = [key(row), JSON.stringify(row)];
      const before = this.#shown.get(name);
      const isSame = before?.content === content;
      const element = before && isSame ? before.element : this.#row(row);
      if (before && !isSame && before.element.contains(document.activeElement)) {
        queueMicrotask(() => element.querySelector('a')?.focus());
      }
      if (name === this.#marked) element.setAttribute('aria-current', 'true');
      shown.set(name, { content, element });
      return element;
    });
    this.#shown = shown;
    if (elements.length === 0 && this.#isKnown) {
      const text = this.#rows.length > 0 ? 'No row has these words.' : this.#empty;
      const cell = h('td', { colspan: columns.length, class: 'quiet' }, text);
      elements.push(h('tr', {}, cell));
    }
    placed(this.#body, elements);
    this.#heads();
    this.#pages(selected.length, pages);
  }

  /** @param {R} row */
  #row(row) {
    const cells = this.#options.columns.map(({ value, show, isNumeric, isCode }) => {
      const text = String(value(row));
      const isProse = !isCode && text.length > WORDS;
      const classes = [isNumeric && 'numeric', isCode && 'code', isProse && 'prose'];
      const names = classes.filter(Boolean).join(' ');
      return h('td', { class: names || null }, show ? show(row) : text);
    });
    return h('tr', {}, ...cells);
  }

  #heads() {
    const direction = this.#isDescending ? 'descending' : 'ascending';
    this.#titles.forEach((title, index) => {
      if (index === this.#sortedBy) title.setAttribute('aria-sort', direction);
      else title.removeAttribute('aria-sort');
    });
  }

  /**
   * @param {number} count
   * @param {number} pages
   */
  #pages(count, pages) {
    const all = this.#rows.length;
    if (!this.#isKnown) return;
    setText(
      this.#count,
      count === all ? counted(all, 'row') : `${count} of ${counted(all, 'row')}`,
    );
    // A short table is counted at a glance.
    this.controls.hidden = pages < 2 && !this.#options.filter;
    this.#pager.hidden = pages < 2;
    if (pages < 2) return;
    const turn = (/** @type {number} */ by) => () => {
      this.#page += by;
      this.#render();
      this.#pager.querySelector(/** @type {'button'} */ ('button:enabled'))?.focus();
    };
    const [isFirst, isLast] = [this.#page === 0, this.#page === pages - 1];
    const text = `page ${this.#page + 1} of ${pages}`;
    if (this.#pager.dataset['shown'] === text) return;
    this.#pager.dataset['shown'] = text;
    replace(
      this.#pager,
      button('Previous', turn(-1), { disabled: isFirst }),
      h('span', {}, text),
      button('Next', turn(1), { disabled: isLast }),
    );
  }
}

/**
 * A hint that a frame has more than it shows, while it does: many browsers hide its scrollbar.
 *
 * @param {HTMLElement} frame
 */
function sidewaysHint(frame) {
  const text = 'Scroll sideways for all columns →';
  const hint = h('p', { class: 'sideways quiet', hidden: true }, text);
  const show = () => {
    const more = frame.scrollWidth - frame.clientWidth;
    hint.hidden = more <= 1;
    // A frame without more would only be another stop of the Tab key.
    if (more > 1) frame.tabIndex = 0;
    else frame.removeAttribute('tabindex');
    frame.classList.toggle('is-cut', frame.scrollLeft < more - 1);
  };
  const resized = new ResizeObserver(show);
  for (const element of [frame, ...frame.children]) resized.observe(element);
  frame.addEventListener('scroll', show, { passive: true });
  return hint;
}

/**
 * @param {string | number} a
 * @param {string | number} b
 */
function compare(a, b) {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return order.compare(String(a), String(b));
}

/**
 * Makes elements the children, and leaves those alone that are in their place already.
 *
 * @param {Element} parent
 * @param {Element[]} elements
 */
function placed(parent, elements) {
  elements.forEach((element, index) => {
    const present = parent.children[index];
    if (present !== element) parent.insertBefore(element, present ?? null);
  });
  while (parent.children.length > elements.length) parent.lastElementChild?.remove();
}
