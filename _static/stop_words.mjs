// Words that say nothing about what a question is about.
export const STOP = new Set(
  "a an and are as at be between but by can difference do does explain for from get has have how i if in into is it its me my not of on or our should simple terms than that the their them then there these they this to use using versus vs was we what when where which while who why will with would you your".split(
    " ",
  ),
);
