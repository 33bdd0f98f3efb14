// Asks for the same page again and again, and changes the document where it differs.
"use strict";

(() => {
	const wait = 1000 * Number(document.body.dataset.refresh);
	const longest = 15000;
	const live = document.getElementById("live");
	const announce = document.getElementById("announce");
	let pause = wait, timer = 0, request = null;

	// morph makes the node a equal to b. Elements stay, and with them focus, selection and scroll position.
	function morph(a, b) {
		if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) {
			a.replaceWith(document.importNode(b, true));
			return;
		}
		if (a.nodeType !== Node.ELEMENT_NODE) {
			if (a.data !== b.data) a.data = b.data;
			return;
		}
		if (a.isEqualNode(b)) return;
		for (const { name } of [...a.attributes]) if (!b.hasAttribute(name)) a.removeAttribute(name);
		for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value) a.setAttribute(name, value);
		const from = [...a.childNodes], to = [...b.childNodes];
		for (let i = 0; i < Math.max(from.length, to.length); i++) {
			if (i >= to.length) from[i].remove();
			else if (i >= from.length) a.append(document.importNode(to[i], true));
			else morph(from[i], to[i]);
		}
	}

	function show(text) {
		const next = new DOMParser().parseFromString(text, "text/html");
		const before = document.getElementById("news").textContent;
		for (const part of next.querySelectorAll("[data-live]")) {
			const here = document.getElementById(part.id);
			if (here) morph(here, part);
		}
		const after = document.getElementById("news").textContent;
		if (after !== before) announce.textContent = after;
		live.textContent = "live";
		live.className = "";
	}

	async function refresh() {
		clearTimeout(timer);
		if (request) request.abort();
		const mine = request = new AbortController();
		const late = setTimeout(() => mine.abort(), longest);
		try {
			const answer = await fetch(location.pathname + location.search, { signal: mine.signal, cache: "no-store", credentials: "same-origin" });
			const text = await answer.text();
			if (!answer.ok) throw new Error(answer.status === 404 ? "the Service is gone" : text.trim() || String(answer.status));
			if (request !== mine) return;
			show(text);
			pause = wait;
		} catch (fault) {
			if (request !== mine) return;
			live.textContent = "not live: " + (fault.name === "AbortError" || fault.name === "TypeError" ? "Weir does not answer" : fault.message);
			live.className = "stale";
			pause = Math.min(2 * pause, longest);
		} finally {
			clearTimeout(late);
			if (request === mine) timer = setTimeout(refresh, pause);
		}
	}

	// A page that nobody sees asks for nothing.
	document.addEventListener("visibilitychange", () => {
		if (!document.hidden) return refresh();
		clearTimeout(timer);
		if (request) request.abort();
		request = null;
	});

	const search = document.getElementById("q");
	if (search) {
		let typed = 0;
		search.addEventListener("input", () => {
			clearTimeout(typed);
			typed = setTimeout(() => {
				const to = new URL(location.href);
				if (search.value) to.searchParams.set("q", search.value);
				else to.searchParams.delete("q");
				to.searchParams.delete("page");
				history.replaceState(null, "", to);
				refresh();
			}, 200);
		});
	}
	live.textContent = "live";
	timer = setTimeout(refresh, wait);
})();
