//! What the person is doing: which row is chosen, what is being typed.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// So many names are offered for completion.
const OFFERED: usize = 8;

/// What the person wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// The function of this name.
    Add(String),
    /// What the item of this row calls.
    StepInto(usize),
    /// Back to where the last step was made.
    StepOut,
    /// The item of this row no more.
    Drop(usize),
    /// The rows in another order: where most time is spent first.
    Sort,
    /// Names to complete from: they are about to be typed.
    Names,
    /// The end.
    Quit,
}

/// What is being typed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Typing {
    /// The text so far.
    pub text: String,
    /// Names that contain it.
    pub offered: Vec<String>,
    /// Which of these is chosen.
    pub chosen: Option<usize>,
}

/// The state of the view.
#[derive(Default, Debug)]
pub struct State {
    /// The chosen row.
    pub row: usize,
    /// Set while a name is being typed.
    pub typing: Option<Typing>,
    /// What the person was told last.
    pub message: String,
    names: Vec<String>,
}

impl State {
    /// Sets the names that are offered.
    pub fn offer(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// Keeps the chosen row among `rows`.
    pub fn keep_within(&mut self, rows: usize) {
        self.row = self.row.min(rows.saturating_sub(1));
    }

    /// What a key means now.
    pub fn key(&mut self, key: KeyEvent) -> Option<Wish> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        // The terminal is in raw mode: no signal comes of it.
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Wish::Quit);
        }
        match self.typing.take() {
            Some(typing) => self.type_key(typing, key.code),
            None => self.command(key.code),
        }
    }

    fn command(&mut self, code: KeyCode) -> Option<Wish> {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('a') => {
                self.typing = Some(Typing::default());
                return Some(Wish::Names);
            }
            KeyCode::Char('s') => {
                self.row = 0;
                return Some(Wish::Sort);
            }
            KeyCode::Char('d') | KeyCode::Delete => return Some(Wish::Drop(self.row)),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => {
                return Some(Wish::StepInto(self.row));
            }
            KeyCode::Backspace | KeyCode::Left | KeyCode::Char('h') => return Some(Wish::StepOut),
            KeyCode::Up | KeyCode::Char('k') => self.row = self.row.saturating_sub(1),
            // Limited when it is drawn.
            KeyCode::Down | KeyCode::Char('j') => self.row += 1,
            _ => {}
        }
        None
    }

    fn type_key(&mut self, mut typing: Typing, code: KeyCode) -> Option<Wish> {
        match code {
            KeyCode::Esc => return None,
            KeyCode::Enter => {
                let chosen = typing.chosen.and_then(|at| typing.offered.get(at).cloned());
                let name = chosen.unwrap_or(typing.text);
                return (!name.trim().is_empty()).then_some(Wish::Add(name));
            }
            KeyCode::Tab | KeyCode::Down if !typing.offered.is_empty() => {
                let next = typing.chosen.map_or(0, |at| at + 1);
                typing.chosen = Some(next % typing.offered.len());
            }
            KeyCode::Up | KeyCode::BackTab => {
                typing.chosen = typing.chosen.and_then(|at| at.checked_sub(1));
            }
            KeyCode::Backspace => {
                typing.text.pop();
                self.complete(&mut typing);
            }
            KeyCode::Char(char) => {
                typing.text.push(char);
                self.complete(&mut typing);
            }
            _ => {}
        }
        self.typing = Some(typing);
        None
    }

    /// Names that begin with the text come before those that contain it.
    fn complete(&self, typing: &mut Typing) {
        typing.chosen = None;
        typing.offered.clear();
        if typing.text.is_empty() {
            return;
        }
        let text = typing.text.as_str();
        let begin = self.names.iter().filter(|name| name.starts_with(text));
        let contain = self
            .names
            .iter()
            .filter(|name| !name.starts_with(text) && name.contains(text));
        typing.offered = begin.chain(contain).take(OFFERED).cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut State, keys: &[KeyCode]) -> Option<Wish> {
        let mut wish = None;
        for &code in keys {
            wish = state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        wish
    }

    #[test]
    fn keys_become_wishes() {
        let mut state = State::default();
        assert_eq!(press(&mut state, &[KeyCode::Char('a')]), Some(Wish::Names));
        state.offer(
            ["insert", "main", "lib:reinsert"]
                .map(str::to_owned)
                .to_vec(),
        );
        assert_eq!(
            press(&mut state, &[KeyCode::Char('i'), KeyCode::Char('n')]),
            None
        );
        assert_eq!(
            state.typing.as_ref().unwrap().offered,
            ["insert", "main", "lib:reinsert"]
        );
        let wish = press(
            &mut state,
            &[
                KeyCode::Char('s'),
                KeyCode::Tab,
                KeyCode::Tab,
                KeyCode::Enter,
            ],
        );
        assert_eq!(wish, Some(Wish::Add("lib:reinsert".to_owned())));
        assert_eq!(
            press(&mut state, &[KeyCode::Down, KeyCode::Enter]),
            Some(Wish::StepInto(1))
        );
        assert_eq!(
            press(&mut state, &[KeyCode::Backspace]),
            Some(Wish::StepOut)
        );
        state.keep_within(1);
        assert_eq!(
            press(&mut state, &[KeyCode::Char('d')]),
            Some(Wish::Drop(0))
        );
        state.row = 1;
        assert_eq!(press(&mut state, &[KeyCode::Char('s')]), Some(Wish::Sort));
        assert_eq!(state.row, 0);
        // What is typed is no command.
        assert_eq!(press(&mut state, &[KeyCode::Char('a')]), Some(Wish::Names));
        // Other libraries have come.
        state.offer(vec!["late:query".to_owned()]);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), None);
        assert_eq!(state.typing.as_ref().unwrap().offered, ["late:query"]);
        assert_eq!(
            press(&mut state, &[KeyCode::Esc, KeyCode::Char('q')]),
            Some(Wish::Quit)
        );
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(control_c), Some(Wish::Quit));
    }
}
