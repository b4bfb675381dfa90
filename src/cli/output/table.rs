//! Text tables.

/// Alignment of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For figures.
    Right,
}

/// Smallest width of a shortened column.
const MIN_WIDTH: usize = 6;

/// Rows of cells, two spaces apart, each column as wide as its widest cell. Styles have no width.
pub(crate) fn table(columns: &[Align], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(columns.iter().zip(&widths))
                .map(|(cell, (align, width))| pad(cell, *align, *width))
                .collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

/// The same, at most `max` columns wide if given. The columns in `cut` are shortened, in that order. Their cells have
/// no styles.
pub(crate) fn fitted(columns: &[Align], rows: &mut [Vec<String>], cut: &[usize], max: Option<usize>) -> Vec<String> {
    let widest = |rows: &[Vec<String>], column: usize| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
    let whole = |rows: &[Vec<String>]| (0..columns.len()).map(|column| widest(rows, column) + 2).sum::<usize>() - 2;
    for column in cut {
        let over = max.map_or(0, |max| whole(rows).saturating_sub(max));
        let space = widest(rows, *column).saturating_sub(over).max(MIN_WIDTH);
        for row in rows.iter_mut().filter(|row| width(&row[*column]) > space) {
            let cell = anstream::adapter::strip_str(&row[*column]).to_string();
            row[*column] = cell.chars().take(space - 1).chain(['…']).collect();
        }
    }
    table(columns, rows)
}

fn width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).to_string().chars().count()
}

fn pad(cell: &str, align: Align, to: usize) -> String {
    let space = " ".repeat(to.saturating_sub(width(cell)));
    match align {
        Align::Left => format!("{cell}{space}"),
        Align::Right => format!("{space}{cell}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Align, table};
    use crate::cli::console::{BAD, paint};

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_line_up_whatever_their_styles() {
        let lines = table(
            &[Align::Left, Align::Right, Align::Left],
            &[row(&["kind", "count", "note"]), row(&[&paint(BAD, "sha256"), "7", ""]), row(&["gzip", "1234567"])],
        );
        let plain: Vec<String> = lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
        assert_eq!(plain, ["kind      count  note", "sha256        7", "gzip    1234567",]);
    }
}
