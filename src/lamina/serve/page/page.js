// What is on the page, and what is not: the models that the server has decide.

import { $, ask, hasKey, make, on, sleep, useKey, watch } from "./client.js"
import { Translate } from "./translate.js"
import { Fill, Write } from "./writing.js"

const MODES = { translate: "Translate", write: "Write", fill: "Fill gaps" }
let translate = null

function theme() {
  const wanted = localStorage.getItem("lamina-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")
  document.documentElement.dataset.theme = wanted
}

function connection(isThere) {
  $("connection").textContent = isThere ? "connected" : "no connection"
  $("connection").className = `chip ${isThere ? "on" : "off"}`
  $("banner").hidden = isThere
  $("banner").textContent = isThere ? "" : "The server cannot be reached. This page keeps trying, and your text stays here."
}

function askForKey() {
  $("key-label").textContent = $("key").value ? "The server does not accept this key" : "This server asks for a key"
  $("key-form").hidden = false
}

function show(mode) {
  for (const name of Object.keys(MODES)) {
    $(name).hidden = name !== mode
    $(`tab-${name}`)?.setAttribute("aria-selected", name === mode)
    if ($(`tab-${name}`)) $(`tab-${name}`).tabIndex = name === mode ? 0 : -1
  }
}

function modes(names) {
  const tabs = names.map(name => {
    const tab = make("button", { text: MODES[name], role: "tab", type: "button", id: `tab-${name}`, "aria-controls": name })
    tab.addEventListener("click", () => show(name))
    return tab
  })
  $("modes").replaceChildren(...tabs)
  $("modes").hidden = names.length < 2
  $("modes").addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (!step) return
    const own = tabs.indexOf(document.activeElement)
    const next = tabs[(own + step + tabs.length) % tabs.length]
    next.click()
    next.focus()
  })
  show(names[0])
}

async function start() {
  theme()
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme)
  $("theme").addEventListener("click", () => {
    localStorage.setItem("lamina-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark")
    theme()
  })
  on("lost", () => connection(false))
  on("found", () => { connection(true); translate?.again() })
  on("locked", () => askForKey())
  $("key-form").addEventListener("submit", event => {
    event.preventDefault()
    useKey($("key").value)
    $("key-form").hidden = true
    translate?.again()
  })
  let models = null
  while (!models) models = await ask("/models").catch(() => sleep(1000))
  connection(true)
  watch()
  if (models.needs_key && !hasKey()) askForKey()
  $("version").textContent = `Lamina ${models.version}`
  const names = [...(models.translation.length ? ["translate"] : []), ...(models.language.length ? ["write"] : []),
    ...(models.masked.length ? ["fill"] : [])]
  modes(names)
  if (models.translation.length) translate = new Translate(models)
  if (models.language.length) new Write(models)
  if (models.masked.length) new Fill(models)
}

start()
