"""Train an MTP head on a frozen backbone: texts → on-policy answers → features → head."""
