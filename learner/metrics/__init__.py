"""What TensorBoard shows: metrics of groups, of the buffer, of drift, and the table of tags."""
