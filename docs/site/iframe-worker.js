// Search without a server: a page read from the disk may not start a Worker, so its script runs in a hidden frame instead.
// The theme's offline plugin would fetch such a shim from another server; it takes this one since the name is the same.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame
    #waiting = []  // messages that came before the script had run

    constructor(url) {
      super()
      const frame = this.#frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      // What the script knows from a worker's global scope: answers, and scripts that are loaded one after the other.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: next, onload: loaded, onerror: failed })
        inside.document.body.append(script)
      })), Promise.resolve())
      inside.importScripts(new URL(url, location)).then(() => {
        const waiting = this.#waiting
        this.#waiting = null
        waiting.forEach(data => this.postMessage(data))
      }, () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} could not be loaded` })))
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data)
      else this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.#frame.remove()
    }
  }
}
