// A browser starts no worker from file://. There, an invisible frame runs the script of a worker instead. The theme's
// search asks for a global of this name, and needs postMessage, "message" events and importScripts.
(() => {
  if (location.protocol !== "file:") return

  const load = (inside, url) =>
    new Promise((resolve, reject) => {
      const script = inside.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = () => reject(new Error(`cannot load ${url}`))
      inside.body.appendChild(script)
    })

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await load(frame.contentDocument, each)
      }
      this.ready = load(frame.contentDocument, url)
    }

    async postMessage(data) {
      await this.ready
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }

  window.IFrameWorker = window.Worker = IFrameWorker
})()
