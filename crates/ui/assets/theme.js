// Light and dark: as the system has it, or as chosen.

import { button } from './dom.js';
import { Signal } from './signal.js';

const KEY = 'podplane-theme';
const CHOICES = ['system', 'light', 'dark'];
/** @type {Record<string, string>} */
const LABELS = { system: '◐ Auto', light: '◐ Light', dark: '◐ Dark' };
const dark = matchMedia('(prefers-color-scheme: dark)');

/** The present theme, light or dark. */
export const theme = new Signal('light');

function stored() {
  try {
    const choice = localStorage.getItem(KEY) ?? '';
    return CHOICES.includes(choice) ? choice : 'system';
  } catch {
    return 'system';
  }
}

/** @param {string} choice */
function store(choice) {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

/** The switch; with `system` the theme follows the system. */
export function themeSwitch() {
  let choice = stored();
  const apply = () => {
    const system = dark.matches ? 'dark' : 'light';
    const now = choice === 'system' ? system : choice;
    document.documentElement.dataset['theme'] = now;
    element.textContent = LABELS[choice] ?? choice;
    element.setAttribute('aria-label', `Theme: ${choice}`);
    element.title = `Theme: ${choice}`;
    theme.set(now);
  };
  const element = button('', () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length] ?? 'system';
    store(choice);
    apply();
  });
  dark.addEventListener('change', apply);
  apply();
  return element;
}
