// The map of a prefix: a picture that the pointer and the keyboard move through.

/** @import { Cell, Finding, MapDocument } from '../types/contract.js' */
/** @import { Mark } from './scene.js' */
/** @import { Context } from './views.js' */

import { openHolder } from './addresses.js';
import { ServerError } from './api.js';
import { draw } from './canvas.js';
import { h, isChanged, replace, section, setText } from './dom.js';
import { errorBox, hint } from './messages.js';
import { nodeLinks, nodesOf } from './nodes.js';
import { go, mapLink } from './route.js';
import { Scene } from './scene.js';
import { soon, throttled } from './signal.js';
import { legend } from './states.js';
import { blockState, number } from './words.js';

/** The columns and rows for wide and for narrow places. */
const GRID = { wide: 64, narrow: 32 };
const NARROW = 460;
/** The longest side, and the room that the rest of a view takes, in pixels. */
const LONGEST = 768;
const AROUND = 190;
const LEAST = 240;

/**
 * The map that had the focus when it was zoomed; the next one takes it, at the cell that was left.
 *
 * @type {{map: AddressMap, at: string | null} | null}
 */
let focused = null;

/** The steps of Enter that lead to the present prefix; Escape undoes them. */
/** @type {{network: string, from: string, to: string}[]} */
const steps = [];

/**
 * @typedef {object} MapOptions
 * @property {string | null} [network]
 * @property {string | null} [prefix]
 * @property {string | null} [address] is marked: the map begins there, with the focus
 * @property {(content: HTMLElement, error: ServerError | null) => void} [onAbsent] shows why there
 *   is no map, in place of the map itself
 * @property {boolean} [isSmall] a picture beside another: no keyboard, a click opens it
 * @property {(scene: Scene, cell: Cell | null, findings: Finding[]) => void} [onCell]
 * @property {(scene: Scene) => void} [onScene]
 */

export class AddressMap {
  element;
  #context;
  #options;
  #canvas = h('canvas', { width: 0, height: 0 });
  #problem = h('div', {});
  #description = h('p', { class: 'for-readers' });
  /** @type {Scene | null} */ #scene = null;
  /** @type {{x: number, y: number} | null} */ #cursor = null;
  /** @type {Mark[]} */ #marks = [];
  #size = 0;
  #isScheduled = false;
  /** The address at which the map begins. @type {string | null} */ #wanted;

  /**
   * @param {Context} context
   * @param {MapOptions} options
   */
  constructor(context, options) {
    this.#context = context;
    this.#options = options;
    this.#wanted = options.address ?? null;
    const id = `map-${options.prefix ?? options.network ?? 'first'}`;
    this.#description.id = id;
    this.element = h(
      'figure',
      { class: options.isSmall ? 'map small' : 'map' },
      this.#problem,
      this.#canvas,
      this.#description,
    );
    // Until it is drawn, and its network is known.
    const name = `Map ${options.prefix ?? options.network ?? ''}`.trim();
    this.#canvas.setAttribute('aria-label', name);
    if (options.isSmall) this.#canvas.setAttribute('role', 'img');
    else this.#interactive(id);
    const { end } = context;
    const resized = new ResizeObserver(() => this.#changed());
    resized.observe(this.element);
    end.addEventListener('abort', () => resized.disconnect(), { once: true });
    context.theme.follow(end, () => this.#changed());
    context.feed.cluster.follow(end, () => this.#changed());
  }

  /** Follows the map. A small one, or one of a recording, is read again with each cluster. */
  start() {
    const { network, prefix, isSmall } = this.#options;
    const width = this.element.clientWidth;
    const grid = String(isSmall || width < NARROW ? GRID.narrow : GRID.wide);
    const query = new URLSearchParams({ columns: grid, rows: grid });
    if (network) query.set('network', network);
    if (prefix) query.set('prefix', prefix);
    const path = `/summary/v1alpha1/map?${query}`;
    const { api, end, feed, isLive, pause } = this.#context;
    if (!isLive || isSmall) {
      feed.cluster.follow(
        end,
        throttled(pause, end, () => this.#read(path)),
      );
      return;
    }
    void api.follow(`${path}&watch=true`, end, {
      onDocument: (/** @type {MapDocument} */ document) => this.#apply(document),
      onLost: () => {},
      onRefused: (error) => this.#absent(errorBox(error), error),
    });
  }

  /**
   * Reads the map if the newest document of the cluster has its network.
   *
   * @param {string} path
   */
  async #read(path) {
    const { api, end, feed } = this.#context;
    const { isKnown, networks, at } = feed.cluster.value;
    const { network } = this.#options;
    if (!isKnown) return;
    if (!networks.some(({ cidr }) => !network || cidr === network)) {
      this.#scene = null;
      this.#canvas.hidden = true;
      const missing = network ? `network ${network}` : 'network';
      this.#absent(hint(`There is no ${missing} at this moment.`), null);
      return;
    }
    try {
      this.#apply(await api.json(path, end, at));
    } catch (error) {
      // The state of the connection is shown for the whole page.
      if (error instanceof ServerError) this.#absent(errorBox(error), error);
    }
  }

  /**
   * @param {HTMLElement} content
   * @param {ServerError | null} error
   */
  #absent(content, error) {
    if (this.#options.onAbsent) this.#options.onAbsent(content, error);
    else replace(this.#problem, content);
  }

  /** @param {string} description */
  #interactive(description) {
    const canvas = this.#canvas;
    for (const [name, value] of Object.entries({
      tabindex: '0',
      role: 'application',
      'aria-roledescription': 'address map',
      'aria-describedby': description,
    })) {
      canvas.setAttribute(name, value);
    }
    canvas.addEventListener('pointermove', (event) => this.#at(this.#cellUnder(event)));
    canvas.addEventListener('click', (event) => this.#open(this.#cellUnder(event)));
    canvas.addEventListener('focus', () => {
      if (canvas.matches(':focus-visible') && !this.#cursor) this.#at({ x: 0, y: 0 });
    });
    canvas.addEventListener('keydown', (event) => this.#key(event));
  }

  /** @param {MapDocument} document */
  #apply(document) {
    if (document.type === 'SCENE' && document.view) {
      this.#scene = new Scene(document.view, document.blocks ?? {});
      this.#canvas.hidden = false;
      replace(this.#problem);
    } else if (document.type === 'CELLS') {
      this.#scene?.change(document);
    } else {
      return;
    }
    this.#changed();
  }

  /** Draws with the next frame. */
  #changed() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    soon(() => {
      this.#isScheduled = false;
      if (this.#scene && !this.#context.end.aborted) this.#draw(this.#scene);
    });
  }

  /** @param {Scene} scene */
  #draw(scene) {
    const { width, height, prefix, network } = scene.view;
    const { isSmall } = this.#options;
    const room = Math.min(this.element.clientWidth, isSmall ? 192 : LONGEST);
    const high = isSmall ? 192 : Math.max(LEAST, window.innerHeight - AROUND);
    const size = Math.min(room / width, Math.max(high, (LEAST * height) / width) / height);
    this.#size = size >= 2 ? Math.floor(size) : size;
    this.#marks = scene.marks(this.#context.feed.cluster.value.findings);
    // A single address needs nobody to point at it.
    if (width * height === 1) this.#cursor = { x: 0, y: 0 };
    this.#begin(scene);
    const cursor = this.#cursor ? scene.at(this.#cursor.x, this.#cursor.y) : null;
    draw(this.#canvas, scene, this.#size, { marks: this.#marks, cursor });
    const name = `Map of ${network.role} ${prefix}`;
    if (this.#canvas.getAttribute('aria-label') !== name)
      this.#canvas.setAttribute('aria-label', name);
    setText(this.#description, described(scene));
    this.#options.onScene?.(scene);
    this.#options.onCell?.(scene, cursor, cursor ? findingsAt(this.#marks, cursor) : []);
  }

  /**
   * Takes the focus and the place that the map begins with.
   *
   * @param {Scene} scene
   */
  #begin(scene) {
    if (this.#options.isSmall) return;
    const hadFocus = focused !== null && focused.map !== this;
    const at = this.#wanted ?? (hadFocus ? (focused?.at ?? null) : null);
    if (!hadFocus && at === null) return;
    if (hadFocus) focused = null;
    this.#wanted = null;
    const cell = at === null ? null : scene.cellOf(at);
    if (cell) this.#cursor = { x: cell.x, y: cell.y };
    this.#canvas.focus({ preventScroll: true });
  }

  /** @param {MouseEvent} event */
  #cellUnder(event) {
    const [x, y] = [event.offsetX, event.offsetY].map((pixels) => Math.floor(pixels / this.#size));
    return x === undefined || y === undefined ? null : { x, y };
  }

  /** @param {{x: number, y: number} | null} place */
  #at(place) {
    const isSame = place?.x === this.#cursor?.x && place?.y === this.#cursor?.y;
    if (isSame || (place && !this.#scene?.at(place.x, place.y))) return;
    this.#cursor = place;
    this.#changed();
  }

  /** @param {{x: number, y: number} | null} place */
  #open(place) {
    const scene = this.#scene;
    const cell = scene && place ? scene.at(place.x, place.y) : null;
    if (!scene || !cell) return;
    const into = scene.into(cell);
    const { network, prefix } = scene.view;
    if (into) {
      steps.push({ network: network.cidr, from: prefix, to: into });
      this.#zoom(into, null);
    } else void openHolder(this.#context.api, cell.prefix, this.#context.end);
  }

  /**
   * @param {string} prefix
   * @param {string | null} at the prefix of the cell to begin at
   */
  #zoom(prefix, at) {
    focused = document.activeElement === this.#canvas ? { map: this, at } : null;
    go(mapLink(this.#scene?.view.network.cidr, prefix));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.#scene) return;
    const { x, y } = this.#cursor ?? { x: 0, y: 0 };
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [x - 1, y],
      ArrowRight: [x + 1, y],
      ArrowUp: [x, y - 1],
      ArrowDown: [x, y + 1],
      Home: [0, y],
      End: [this.#scene.view.width - 1, y],
    });
    const move = moves[event.key];
    if (move) this.#at({ x: move[0], y: move[1] });
    else if (event.key === 'Enter' || event.key === '+') this.#open({ x, y });
    else if (['Backspace', 'Escape', '-'].includes(event.key)) this.#out();
    else return;
    event.preventDefault();
  }

  /** Undoes the step that led here; where none did, goes to the next larger prefix. */
  #out() {
    if (!this.#scene) return;
    const { network, prefix } = this.#scene.view;
    const step = steps.pop();
    const isUndone = step?.network === network.cidr && step.to === prefix;
    if (!isUndone) steps.length = 0;
    const outer = isUndone ? step?.from : this.#scene.crumbs().at(-2);
    if (outer) this.#zoom(outer, prefix);
  }
}

/**
 * The findings about a cell.
 *
 * @param {Mark[]} marks
 * @param {Cell} cell
 */
function findingsAt(marks, { x, y }) {
  const covers = (/** @type {Mark} */ { rect }) =>
    rect.x <= x && x < rect.x + rect.width && rect.y <= y && y < rect.y + rect.height;
  // Several places of one finding may be around it.
  return [...new Set(marks.filter(covers).map(({ finding }) => finding))];
}

/**
 * The picture in words.
 *
 * @param {Scene} scene
 */
function described({ view }) {
  const each = Object.entries(view.counts).map(([state, count]) => `${number(count)} ${state}`);
  const blocks = view.outlines
    .slice(0, 50)
    .map(({ cidr, node, state }) => `${cidr} ${node ?? blockState(state)}`);
  return `${view.prefix}: ${each.join(', ')}. Blocks inside: ${blocks.join('; ') || 'none'}.
    Arrow keys move, Enter zooms in, Escape zooms out.`;
}

/**
 * The legend beside a map; it follows the numbers.
 */
export class Legend {
  element = h('div', {});

  /** @param {Scene} scene */
  show({ view }) {
    if (!isChanged(this.element, [view.counts, view.hidden])) return;
    const hidden = Object.keys(view.hidden).length > 0;
    replace(
      this.element,
      legend(view.counts),
      hidden && h('p', { class: 'quiet' }, 'Not all of them fit into the picture.'),
    );
  }
}

/** The most blocks that are listed. */
const MOST_BLOCKS = 32;

/**
 * The blocks in a picture, each with its node: large cells have no room for labels over them.
 */
export class BlockList {
  element = h('div', {});

  /** @param {Scene} scene */
  show({ view }) {
    const { outlines, network } = view;
    const isListed = outlines.length > 0 && outlines.length <= MOST_BLOCKS;
    if (!isChanged(this.element, isListed && [network.cidr, outlines])) return;
    if (!isListed) {
      replace(this.element);
      return;
    }
    // A block of several nodes has an outline for each, and each names the others.
    const first = outlines.filter(({ cidr }, index) =>
      outlines.findIndex((other) => other.cidr === cidr) === index,
    );
    const items = first.map(({ cidr, state, ...block }) =>
      h(
        'li',
        {},
        h('a', { href: mapLink(network.cidr, cidr), class: 'code' }, cidr),
        ' ',
        nodeLinks(nodesOf(block)),
        state !== 'assigned' && ` ${blockState(state)}`,
      ),
    );
    replace(this.element, section('Blocks', h('ul', { class: 'plain' }, ...items)));
  }
}
