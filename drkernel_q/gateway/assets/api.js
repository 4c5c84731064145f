// Asking the gateway: with the token of this tab, and with the difference between "not allowed" and "away".

const KEY = "drkq-token";

export class NotAllowed extends Error {}

export async function ask(path, values = {}) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(url, { headers, cache: "no-store", signal: AbortSignal.timeout(20000) });
  if (answer.status === 401 || answer.status === 403) throw new NotAllowed(await reason(answer));
  if (!answer.ok) throw new Error(await reason(answer));
  return answer.json();
}

export function remember(token) {
  sessionStorage.setItem(KEY, token);
}

async function reason(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return `The gateway answers with ${answer.status}.`;
  }
}
