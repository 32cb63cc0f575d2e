//! Measures the readability of a page in the browser, with both color schemes and on both screens.

use serde_json::Value;

use super::driver::{Browser, Screen};

/// Minimum contrast ratio of text (WCAG 2, level AA).
const CONTRAST: f64 = 4.5;

/// Each text with its contrast to the background, from computed colors and opacity.
const CONTRASTS: &str = r"
const rgba = text => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return [numbers[0], numbers[1], numbers[2], numbers.length > 3 ? numbers[3] : 1];
};
const over = (top, alpha, under) => under.map((below, at) => top[at] * alpha + below * (1 - alpha));
const luminance = color => {
    const linear = color.slice(0, 3).map(part => {
        const share = part / 255;
        return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const behind = element => {
    const color = rgba(getComputedStyle(element).backgroundColor);
    if (element === document.documentElement) return color.slice(0, 3);
    return over(color, color[3], behind(element.parentElement));
};
const opacity = element => element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim()) continue;
    const under = behind(element), color = rgba(getComputedStyle(element).color);
    const lights = [over(color, color[3] * opacity(element), under), under].map(luminance).sort((a, b) => a - b);
    found.push([texts.currentNode.data.trim(), (lights[1] + 0.05) / (lights[0] + 0.05)]);
}
return found;";

const WIDTH: &str = "return document.documentElement.scrollWidth";
const BACKGROUND: &str = "return getComputedStyle(document.documentElement).backgroundColor";
/// Heights of links, which must be at least `TARGET` (WCAG 2.2, target size).
const TARGETS: &str =
    "return [...document.querySelectorAll('a')].map(it => it.getBoundingClientRect().height)";
const TARGET: f64 = 24.0;

/// Checks the page on both screens with both color schemes, and panics if it is hard to read. Writes four
/// screenshots.
pub fn at_all(browser: &Browser, name: &str) {
    let mut backgrounds = Vec::new();
    for screen in Screen::ALL {
        browser.screen(screen);
        for scheme in ["light", "dark"] {
            browser.prefers(scheme);
            let name = format!("{name}-{screen:?}-{scheme}").to_lowercase();
            browser.shoot(&name);
            fits(browser, screen, &name);
            has_contrast(browser, &name);
            backgrounds.push(browser.evaluate(BACKGROUND));
        }
    }
    assert_eq!(backgrounds[..2], backgrounds[2..], "the background depends on the screen");
    assert_ne!(backgrounds[0], backgrounds[1], "light and dark have the same background");
    browser.screen(Screen::Desktop);
    browser.prefers("light");
}

fn fits(browser: &Browser, screen: Screen, name: &str) {
    // innerWidth is not usable: a phone increases it and shrinks the content until a page that is too wide fits.
    let (width, most) = (browser.evaluate(WIDTH).as_u64().unwrap(), screen.size().0);
    assert!(width <= most, "{name} is {width} wide on a screen of {most}");
    let heights = numbers(&browser.evaluate(TARGETS));
    assert!(heights.iter().all(|height| *height >= TARGET), "{name}: links are {heights:?} high");
}

fn has_contrast(browser: &Browser, name: &str) {
    let texts = browser.evaluate(CONTRASTS);
    let texts = texts.as_array().unwrap();
    assert!(texts.len() > 10, "{name}: too few texts: {texts:?}");
    let weak = |text: &&Value| text[1].as_f64().is_none_or(|ratio| ratio < CONTRAST);
    let weak: Vec<&Value> = texts.iter().filter(weak).collect();
    assert!(weak.is_empty(), "{name}: contrast below {CONTRAST}: {weak:?}");
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
}
