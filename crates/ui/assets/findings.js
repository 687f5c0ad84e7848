// The findings, each with its place on the map.

/** @import { Finding } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { h, setText } from './dom.js';
import { around, format, parse } from './prefix.js';
import { mapLink, nodeLink, podLink } from './route.js';
import { DataTable } from './table.js';
import { number } from './words.js';

/** The length of the prefix that is shown around a finding, so that its neighbours are seen. */
const AROUND = { v4: 24, v6: 112 };

/**
 * @param {Context} context
 * @returns {View}
 */
export function findings({ feed, end }) {
  const table = new DataTable(
    /** @type {import('./table.js').TableOptions<Finding>} */ ({
      caption: 'Findings',
      columns: [
        {
          title: 'Severity',
          value: ({ severity }) => severity,
          show: ({ severity }) => h('span', { class: `finding ${severity}` }, severity),
        },
        { title: 'Rule', value: ({ rule }) => rule },
        {
          title: 'Place',
          value: ({ prefix }) => prefix ?? '',
          show: (finding) => placeLink(finding),
          isCode: true,
        },
        { title: 'Message', value: ({ message }) => message },
        {
          title: 'Pods',
          value: ({ pods }) => pods?.join(' ') ?? '',
          show: ({ pods }) => links(pods ?? [], podLink),
        },
        {
          title: 'Nodes',
          value: ({ nodes }) => nodes?.join(' ') ?? '',
          show: ({ nodes }) => links(nodes ?? [], nodeLink),
        },
      ],
      key: (finding) => JSON.stringify(finding),
      empty: 'Nothing is wrong on the map. podplane audit has more checks.',
      filter: {
        label: 'Filter findings',
        text: (finding) => Object.values(finding).flat().join(' '),
      },
    }),
  );
  const note = h('p', { class: 'quiet' });
  feed.cluster.follow(end, ({ isKnown, findings: found, findingsTotal }) => {
    if (isKnown) table.update(found);
    const isPart = findingsTotal > found.length;
    setText(note, isPart ? `The first ${found.length} of ${number(findingsTotal)} findings.` : '');
  });
  return { title: 'Findings', element: h('div', {}, note, table.element) };
}

/** @param {Finding} finding */
function placeLink(finding) {
  return finding.prefix ? h('a', { href: placeOf(finding) }, finding.prefix) : '';
}

/**
 * The link to the place of a finding on the map, with its neighbours.
 *
 * @param {Finding} finding
 */
export function placeOf({ prefix, network }) {
  const place = prefix ? parse(prefix) : null;
  if (!prefix || !place) return mapLink(network, prefix);
  const least = network ? (parse(network)?.length ?? 0) : 0;
  const length = Math.max(place.family === 4 ? AROUND.v4 : AROUND.v6, least);
  return mapLink(network, place.length > length ? format(around(place, length)) : prefix);
}

/**
 * @param {string[]} names
 * @param {(name: string) => string} link
 */
function links(names, link) {
  const parts = names.map((name) =>
    h('span', { class: 'holder' }, h('a', { href: link(name) }, name)),
  );
  return h('span', {}, ...parts);
}
