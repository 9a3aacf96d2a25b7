// Asking the server, and knowing whether it is there.

const RETRY_MS = 2000
const WATCH_MS = 5000 // how long a page in sight may say "connected" of a server that is gone

export class Failure extends Error {
  constructor(message, { status = 0, retryAfter = 0 } = {}) {
    super(message)
    this.status = status
    this.retryAfter = retryAfter
  }

  get isLost() { return this.status === 0 }
}

let key = sessionStorage.getItem("lamina-key") || ""
const listeners = { lost: [], found: [], locked: [] }
let isLost = false

export const on = (event, run) => listeners[event].push(run)
const tell = event => listeners[event].forEach(run => run())

export const hasKey = () => key !== ""

export function useKey(text) {
  key = text.trim()
  sessionStorage.setItem("lamina-key", key)
}

export async function raw(path, body, signal) {
  const headers = {}
  if (body !== undefined) headers["Content-Type"] = "application/json"
  if (key) headers.Authorization = `Bearer ${key}`
  let answer
  try {
    answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal,
      body: body === undefined ? undefined : JSON.stringify(body) })
  } catch (error) {
    if (error.name === "AbortError") throw error
    lose()
    throw new Failure("The server cannot be reached.")
  }
  if (answer.ok) {
    find()
    return answer
  }
  const said = await answer.json().catch(() => ({}))
  const message = said.error?.message || said.error || said.message || `The server answered with status ${answer.status}.`
  if (answer.status === 401 || answer.status === 403) tell("locked")
  throw new Failure(message, { status: answer.status, retryAfter: Number(answer.headers.get("Retry-After")) || 0 })
}

export const ask = async (path, body, signal) => (await raw(path, body, signal)).json()

function lose() {
  if (isLost) return
  isLost = true
  tell("lost")
  const again = setInterval(async () => {
    if (!isLost || (await ready())?.ok) {
      clearInterval(again)
      find()
    }
  }, RETRY_MS)
}

const ready = () => fetch("/ready").catch(() => null)

export function watch() {
  setInterval(async () => {
    if (!document.hidden && !isLost && !(await ready())) lose()
  }, WATCH_MS)
}

function find() {
  if (!isLost) return
  isLost = false
  tell("found")
}

export const sleep = ms => new Promise(done => setTimeout(done, ms))
export const $ = id => document.getElementById(id)

export function make(tag, { text, className, ...attributes } = {}, ...children) {
  const element = document.createElement(tag)
  if (text !== undefined) element.textContent = text // never as HTML
  if (className) element.className = className
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

export const milliseconds = seconds => seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`
