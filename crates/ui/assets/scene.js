// A map as data: cells, outlines and blocks, with the changes that the server sends.

/** @import { Cell, Finding, MapBlock, MapDocument, Rect, View } from '../types/contract.js' */
/** @import { Prefix } from './prefix.js' */

import { contains, format, isSingle, parse, path, stepInto } from './prefix.js';

/**
 * @typedef {object} Mark
 * @property {Finding} finding
 * @property {Rect} rect in cells
 */

export class Scene {
  /** @type {View} */ view;
  /** @type {Record<string, MapBlock>} */ blocks;
  /** By row and column. @type {Map<number, Cell>} */ #cells = new Map();
  /** By address; made when it is asked for. @type {{prefix: Prefix, cell: Cell}[] | null} */
  #sorted = null;

  /**
   * @param {View} view
   * @param {Record<string, MapBlock>} blocks
   */
  constructor(view, blocks) {
    this.view = view;
    this.blocks = blocks;
    for (const cell of view.cells) this.#cells.set(this.#key(cell), cell);
  }

  /** @param {{x: number, y: number}} place */
  #key({ x, y }) {
    return y * this.view.width + x;
  }

  /** @param {MapDocument} document changed cells and numbers */
  change(document) {
    for (const cell of document.cells ?? []) this.#cells.set(this.#key(cell), cell);
    this.view.counts = document.counts ?? this.view.counts;
    this.#sorted = null;
  }

  get cells() {
    return this.#cells.values();
  }

  /**
   * @param {number} x
   * @param {number} y
   * @returns {Cell | null}
   */
  at(x, y) {
    if (x < 0 || y < 0 || x >= this.view.width || y >= this.view.height) return null;
    return this.#cells.get(this.#key({ x, y })) ?? null;
  }

  /** @param {Cell} cell */
  blockOf(cell) {
    return cell.block === null ? null : (this.blocks[String(cell.block)] ?? null);
  }

  /**
   * The cell with the first address of a prefix.
   *
   * @param {string} text
   * @returns {Cell | null}
   */
  cellOf(text) {
    const wanted = parse(text);
    if (!wanted) return null;
    const sorted = (this.#sorted ??= this.#byAddress());
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const entry = sorted[middle];
      if (entry && entry.prefix.first <= wanted.first) low = middle + 1;
      else high = middle;
    }
    const found = sorted[low - 1];
    if (!found) return null;
    const touches = contains(found.prefix, wanted) || contains(wanted, found.prefix);
    return touches ? found.cell : null;
  }

  #byAddress() {
    const entries = [];
    for (const cell of this.cells) {
      const prefix = parse(cell.prefix);
      if (prefix) entries.push({ prefix, cell });
    }
    return entries.sort((a, b) => (a.prefix.first < b.prefix.first ? -1 : 1));
  }

  /**
   * The places that findings are about: a cell, or a block of several. Information is no fault.
   *
   * @param {Finding[]} findings the worst first
   * @returns {Mark[]}
   */
  marks(findings) {
    const blocks = new Map(this.view.outlines.map(({ cidr, rect }) => [cidr, rect]));
    const shown = parse(this.view.prefix);
    const { width, height } = this.view;
    return findings.flatMap((finding) => {
      const places = finding.severity === 'info' ? [] : (finding.places ?? []);
      return places.flatMap(({ prefix }) => {
        const place = parse(prefix);
        if (shown && place && contains(place, shown)) {
          return [{ finding, rect: { x: 0, y: 0, width, height } }];
        }
        const cell = this.cellOf(prefix);
        if (!cell) return [];
        const rect = blocks.get(prefix) ?? { x: cell.x, y: cell.y, width: 1, height: 1 };
        return [{ finding, rect }];
      });
    });
  }

  /**
   * The prefix to zoom in to at a cell: the block around it, or a step.
   *
   * @param {Cell} cell
   * @returns {string | null} null where there is nothing further in
   */
  into(cell) {
    const [view, inner] = [parse(this.view.prefix), parse(cell.prefix)];
    if (!view || !inner || view.length === inner.length) return null;
    const block = this.blockOf(cell);
    const around = block && parse(block.cidr);
    if (around && around.length > view.length && around.length <= inner.length) return block.cidr;
    if (isSingle(inner)) return null;
    return this.view.layout === 'used' ? cell.prefix : format(stepInto(view, inner));
  }

  /** The prefixes from the network to the view. */
  crumbs() {
    const [network, prefix] = [parse(this.view.network.cidr), parse(this.view.prefix)];
    return network && prefix ? path(network, prefix).map(format) : [this.view.prefix];
  }
}
