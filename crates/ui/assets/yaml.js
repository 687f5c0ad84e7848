// An object as YAML: shown, and copied.

/** @import { Api } from './api.js' */

import { isAbort } from './api.js';
import { button, h, replace, setText } from './dom.js';
import { errorBox } from './messages.js';

/**
 * @param {Api} api
 * @param {string} path of the object
 * @param {AbortSignal} end
 */
export function yamlPanel(api, path, end) {
  const text = h('pre', { tabindex: '0', 'aria-label': 'The object as YAML' });
  const status = h('span', { role: 'status', class: 'quiet' });
  const content = h('div', {});
  const read = async () => {
    try {
      const yaml = await api.yaml(path, end);
      setText(text, yaml);
      replace(content, text);
      return yaml;
    } catch (error) {
      if (!isAbort(error)) replace(content, errorBox(error));
      return null;
    }
  };
  const copy = button('Copy', async () => {
    const yaml = await read();
    if (yaml === null) return;
    try {
      await navigator.clipboard.writeText(yaml);
      setText(status, 'copied');
    } catch {
      // Without the permission, the text is selected for the user's own copy.
      getSelection()?.selectAllChildren(text);
      setText(status, 'selected: copy it with the keyboard');
    }
  });
  const details = h(
    'details',
    { class: 'panel' },
    h('summary', {}, 'YAML'),
    copy,
    ' ',
    status,
    content,
  );
  details.addEventListener('toggle', () => {
    if (details.open) void read();
  });
  return details;
}
