"""What many readings say together: copies dropped, figures pooled, rounds estimated, trends."""
