"""Reports as pictures: one offline HTML file, and traces for Perfetto."""
